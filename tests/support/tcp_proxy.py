"""A TCP proxy that can swallow everything without closing anything, and change its target: what networks do."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from urllib.parse import urlsplit


class TcpProxy:
    """Listens on a free loopback port and passes bytes on to `target` (a port)."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._passes = asyncio.Event()
        self._passes.set()
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def url(self, server: str) -> str:
        """The URL of `server` by way of this proxy."""
        parts = urlsplit(server)
        return parts._replace(netloc=f"{parts.netloc.rpartition(':')[0]}:{self.port}").geturl()

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def swallow(self) -> None:
        """From now on take everything, pass nothing on and close nothing."""
        self._passes.clear()

    def resume(self) -> None:
        """Pass bytes on again; what was swallowed is gone."""
        self._passes.set()

    def heal(self) -> None:
        """Pass bytes of new connections on; those of before swallow everything for ever, and nobody tells them."""
        self._passes = asyncio.Event()
        self._passes.set()

    def cut(self) -> None:
        """Close every connection."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        passes = self._passes
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
            self._writers.add(back)
            ways = [asyncio.create_task(_pass(*way, passes)) for way in ((reader, back), (there, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                back.close()
                self._writers.discard(back)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._writers.discard(writer)
            self._tasks.discard(task)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            if passes.is_set():
                writer.write(data)
                await writer.drain()
        await passes.wait()  # a half-open connection does not tell of the other side's end either
