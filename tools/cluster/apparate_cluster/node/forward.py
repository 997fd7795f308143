"""Hand connections on: `python -m apparate_cluster.node.forward FD PORT`.

FD is a listening socket, inherited from the host's network; PORT is the API server's in the cluster's own. A socket
stays in the network in which it was made, so this is the only way in, and it ends with the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

CHUNK = 65_536


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
        target.write_eof()


async def _serve(listener: socket.socket, port: int) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(far_writer):
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    async with await asyncio.start_server(connected, sock=listener) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])))
