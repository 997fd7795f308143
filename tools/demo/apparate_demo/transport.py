"""Sending prepared bytes over gRPC or HTTP with as little of the client's own time as possible."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from apparate_demo import oip

CONNECT_WITHIN_S = 1.0
LAST_ANSWER = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
"""The server says so of a connection that it is about to close."""


class NotConnected(ConnectionError):
    """There is no connection, so the request was not sent: it may be tried again."""


class Transport(Protocol):
    """One server, one protocol. `send` returns what `read` understands; reading is left for after the slice."""

    async def send(self, request: bytes) -> Any:
        """Send one request made by `request`, wait for its answer."""

    async def ping(self) -> None:
        """Ask whether the server is alive: a call that does no work."""

    def request(self, item: Mapping[str, Any]) -> bytes:
        """The bytes that ask for one item."""

    def read(self, answer: Any) -> oip.Answer:
        """The answer in what `send` returned. Raises BadAnswer."""

    async def close(self) -> None:
        """Close the connections."""


class GrpcTransport:
    """gRPC, asyncio; messages go in and come out as bytes."""

    def __init__(self, address: str, model: str, options: Sequence[tuple[str, int]] = ()) -> None:
        import grpc.aio

        self._model = model
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._infer: Any = self._channel.unary_unary(oip.GRPC_METHOD)
        self._live: Any = self._channel.unary_unary(oip.GRPC_LIVE)

    async def send(self, request: bytes) -> bytes:
        """Send one serialised request."""
        answer: bytes = await self._infer(request)
        return answer

    async def ping(self) -> None:
        """ServerLive."""
        await self._live(b"")

    def request(self, item: Mapping[str, Any]) -> bytes:
        """A serialised ModelInferRequest."""
        return oip.grpc_request(self._model, item)

    def read(self, answer: Any) -> oip.Answer:
        """From a serialised ModelInferResponse."""
        return oip.read_grpc(answer)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


class HttpTransport:
    """HTTP/1.1 with keep-alive: a connection for each request in flight, reused."""

    def __init__(self, address: str, model: str) -> None:
        self._address, self._model = address, model
        self._host, _, self._port = address.rpartition(":")
        self._free: list[_Connection] = []
        self._all: list[_Connection] = []

    async def send(self, request: bytes) -> tuple[int, bytes]:
        """Send one whole request; the status line and headers with the body behind them, as (body offset, bytes).

        Raises NotConnected when there is no connection to send it on.
        """
        while self._free and self._free[-1].closed:
            self._free.pop()
        connection = self._free.pop() if self._free else await self._connect()
        answer = await connection.ask(request)
        self._free.append(connection)
        return answer

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                _, connection = await loop.create_connection(_Connection, self._host, int(self._port))
        except OSError as error:  # of which TimeoutError is one
            raise NotConnected(f"no connection to {self._address}: {error or type(error).__name__}") from None
        self._all = [one for one in self._all if not one.closed]
        self._all.append(connection)
        return connection

    async def ping(self) -> None:
        """GET /v2/health/live."""
        await self.send(oip.http_get("/v2/health/live", self._address))

    def request(self, item: Mapping[str, Any]) -> bytes:
        """A whole HTTP request."""
        return oip.http_request(self._model, self._address, item)

    def read(self, answer: Any) -> oip.Answer:
        """From a whole HTTP response."""
        start, data = answer
        status, *lines = data[:start].decode("latin-1").rstrip().split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        return oip.read_http(int(status.split(" ", 2)[1]), headers, data[start:])

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._all:
            connection.close()


class _Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._received = bytearray()
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]  # uvloop's transports are no asyncio.Transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._waiting and not self._waiting.done():
            self._waiting.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def ask(self, request: bytes) -> asyncio.Future[tuple[int, bytes]]:
        """Send a request; the future holds (where the body starts, the whole response)."""
        self._received.clear()
        self._waiting = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self._transport.write(request)
        return self._waiting

    def data_received(self, data: bytes) -> None:
        self._received += data
        start = self._received.find(b"\r\n\r\n") + 4
        if start < 4 or self._waiting is None or self._waiting.done():
            return
        if len(self._received) >= start + _content_length(self._received[:start]):
            if LAST_ANSWER.search(self._received, 0, start):
                self.close()  # or the next request on it would be lost
            self._waiting.set_result((start, bytes(self._received)))

    def close(self) -> None:
        """Close the connection."""
        self.closed = True
        if self._transport is not None:
            self._transport.close()


def _content_length(head: bytearray) -> int:
    low = head.lower()
    place = low.find(b"content-length:")
    while place > 0 and low[place - 1 : place] != b"\n":  # not the end of inference-header-content-length
        place = low.find(b"content-length:", place + 1)
    if place < 0:
        raise oip.BadAnswer("the response has no content-length")
    return int(low[place + 15 : low.index(b"\r", place)])


def connect(protocol: str, address: str, model: str) -> Transport:
    """A transport for `protocol` (grpc or http) to one server. Raises ValueError."""
    if protocol == "grpc":
        return GrpcTransport(address, model)
    if protocol == "http":
        return HttpTransport(address, model)
    raise ValueError(f"protocol is {protocol!r}, must be grpc or http")
