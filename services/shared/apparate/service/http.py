"""How the services' HTTP servers speak."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD_BYTES = 2**16  # of a line and headers, or of what follows a body: as much as common proxies let pass
PATIENCE_S = 75.0  # longer than the 60 s of common load balancers, so that it is they who close
SLOWEST_BYTES = 1000  # of a body in a second
MOST_FILES = 2**16  # a connection that is idle takes about 5 KiB of HTTP, 17 KiB of gRPC
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
    """A connection that takes no more memory and time than its requests need, whoever is at the other end.

    A request to speak another protocol is answered over HTTP/1.1, as RFC 9110 has it: Java's client offers HTTP/2 with
    its first request, and wants an answer to that too. Nothing that a client sends is logged: it could fill the log.
    """

    _received = 0
    """Bytes, since the connection began."""
    _fruitless = 0
    """Bytes since a request's head was whole or some of its body came."""
    _turn: tuple[float, int] | None = None
    """Since when the client is to send something, and how many bytes there were then."""
    _unread = (0.0, 0)
    """Since when so many bytes wait for the client to read them."""

    def connection_made(self, transport: Any) -> None:
        """A client is there."""
        super().connection_made(OneWrite(transport, self.loop))  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        """Some of a request, or of several."""
        self._unset_keepalive_if_required()
        self._received += len(data)
        self._fruitless += len(data)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._go_on(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._end(400, "the request is not HTTP/1.1")
            return
        if self._fruitless > MOST_HEAD_BYTES and not self.transport.is_closing():
            self._end(431, f"the head of a request has more than {MOST_HEAD_BYTES} bytes, the most allowed")

    def _should_upgrade(self) -> bool:
        """Whether a head that asks for another protocol is no request: `_go_on` makes one of it."""
        return True

    def _go_on(self, data: bytes) -> None:
        """Read what follows a head that asked for another protocol. The parser takes it that nothing does, neither body
        nor request: so it is given that head again, without the question. Raises HttpParserError."""
        while True:
            if self.parser.get_method() == b"CONNECT":
                raise httptools.HttpParserError("not a proxy")
            data = self._head_that_stays() + data
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:  # of the next request
                data = data[upgrade.args[0] :]

    def _head_that_stays(self) -> bytes:
        """The head of the request that asked for another protocol, as if it had not."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(one for one in value.split(b",") if one.strip().lower() != b"upgrade")
            if name != b"upgrade":
                lines.append(name + b": " + value)
        return b"\r\n".join(lines) + END

    def on_headers_complete(self) -> None:
        """All of a head."""
        self._turn, self._fruitless = None, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of its body."""
        self._fruitless = 0
        super().on_body(body)

    def look(self, now: float, patience_s: float) -> None:
        """Close a connection whose client has let us wait too long: with a first byte, a head, a body, or the reading
        of its answer. Between requests it is uvicorn's own timer that ends the wait."""
        unread = self.transport.get_write_buffer_size()
        if not unread or unread != self._unread[1]:
            self._unread = now, unread
        if now - self._unread[0] > patience_s:
            self.transport.abort()
        elif not self.transport.is_closing():
            self._look_for_more(now, patience_s)

    def _look_for_more(self, now: float, patience_s: float) -> None:
        """A body may take longer the more of it has come, one second for SLOWEST_BYTES."""
        whole = self.cycle is None or self.cycle.response_complete
        begun = self.timeout_keep_alive_task is None if self.cycle is not None else self._received > 0
        reading, in_head = not whole and self.cycle.more_body, whole and begun
        if self.pipeline or not (reading or in_head or self.cycle is None):
            self._turn = None
        elif self._turn is None or (in_head and self._turn[1] == 0):
            self._turn = now, self._received
        else:
            since, before = self._turn
            came = (self._received - before) / SLOWEST_BYTES if reading else 0.0
            if now - since <= patience_s + came:
                return
            if reading or in_head:
                self._end(408, f"the request was not whole after {now - since:.0f} s")
            else:
                self.transport.close()

    def _end(self, status: int, why: str) -> None:
        """Answer with an error in JSON, as every other, and close."""
        body = json.dumps({"error": why}).encode()
        line = STATUS_LINE + f"{status} {HTTPStatus(status).phrase}".encode()
        head = line + b"\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close" % len(body)
        self.transport.write(head + END + body)
        self.transport.close()


def allow_connections() -> None:
    """Hold as many connections as the system permits: each takes a file, and many shells allow a process 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers, and with an end to its patience: the process decides when to stop, and no
    client can hold a connection for ever by sending nothing."""

    def __init__(self, config: uvicorn.Config, patience_s: float = PATIENCE_S) -> None:
        super().__init__(config)
        self._patience_s = patience_s
        self._look_every = max(1, round(patience_s))  # ticks, of which there are ten in a second

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """No handlers."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second; whether to stop."""
        if counter % self._look_every == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Http):
                    connection.look(now, self._patience_s)
        return await super().on_tick(counter)
