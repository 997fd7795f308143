"""How the services' HTTP servers speak."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

STATUS_LINE, CONTINUE, END = b"HTTP/1.1 ", b"HTTP/1.1 100 ", b"\r\n\r\n"


class OneWrite:
    """A transport that sends the head of an answer together with its body: one system call, and one packet to wake for.

    The head waits for the next write, or for the next turn of the loop when none comes.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._head = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Send, or keep a head for a moment."""
        if self._head:
            data, self._head = self._head + data, b""
        elif data.endswith(END) and data.startswith(STATUS_LINE) and not data.startswith(CONTINUE):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def _flush(self) -> None:
        if self._head:
            self.write(b"")

    def close(self) -> None:
        """Close once everything is sent."""
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Http(HttpToolsProtocol):
    """A request to speak another protocol is answered over HTTP/1.1, as RFC 9110 has it, and is nobody's fault."""

    def connection_made(self, transport: Any) -> None:
        """A client is there."""
        super().connection_made(OneWrite(transport, self.loop))  # type: ignore[arg-type]

    def send_400_response(self, msg: str) -> None:
        """In JSON, as every other error."""
        body = json.dumps({"error": msg}).encode()
        head = b"400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close" % len(
            body
        )
        self.transport.write(STATUS_LINE + head + END + body)
        self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: any client could fill the log."""
