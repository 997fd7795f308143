"""What one HTTP connection may cost a service: little memory, and no connection for ever."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn

from apparate.service.http import MOST_FILES, MOST_HEAD_BYTES, Http, HttpServer

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n"
PIECE, MOST_PIECES = 2**14, 10_000
LARGE = 2**26  # far more than the buffers between two processes hold
WITHIN_S = 30.0


async def length_of_body(scope: Any, receive: Any, send: Any) -> None:
    """Answers with how many bytes came, a moment later."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        size, more = size + len(message["body"]), message["more_body"]
    await asyncio.sleep(float(scope["query_string"] or 0))
    body = bytes(LARGE) if scope["path"] == "/large" else json.dumps(size).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def connected(patience_s: float) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server that waits so long for its clients."""
    config = uvicorn.Config(
        length_of_body, http=Http, ws="none", lifespan="off", log_config=None, access_log=False, timeout_keep_alive=1
    )
    server = HttpServer(config, patience_s)
    listening = bound()
    serving = asyncio.create_task(server.serve([listening]))
    reader, writer = await asyncio.open_connection(*listening.getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.should_exit = True
        await serving


def bound() -> socket.socket:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    return listening


async def answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    """(status, body) of the next answer."""
    async with asyncio.timeout(WITHIN_S):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return int(head.split()[1]), json.loads(await reader.readexactly(int(length.split(b":")[1])))


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All until the server closes the connection."""
    async with asyncio.timeout(WITHIN_S):
        try:
            return await reader.read()
        except ConnectionError:  # closed with something of ours unread
            return b""


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"GET / HTTP/1.1\r\nA: ", b"a" * PIECE),
        (b"GET / HTTP/1.1\r\n", b"a: b\r\n" * (PIECE // 6)),
        (b"GET /", b"a" * PIECE),
        (CHUNKED + b"0\r\nA: ", b"a" * PIECE),
        (CHUNKED + b"0\r\n", b"a: b\r\n" * (PIECE // 6)),
        (CHUNKED + b"1;", b"a" * PIECE),
    ],
    ids=["header", "headers", "path", "trailer", "trailers", "chunk extension"],
)
async def test_a_client_that_never_ends_its_head_or_trailers_is_cut_off(begin: bytes, piece: bytes):
    async with connected(patience_s=600) as (reader, writer):
        writer.write(begin)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < MOST_PIECES and not writer.transport.is_closing():
                writer.write(piece)
                await writer.drain()
                sent += 1
        said = await rest(reader)
    assert sent < MOST_PIECES  # most of them wait in buffers between the two
    assert said == b"" or (said.startswith(b"HTTP/1.1 431 ") and str(MOST_HEAD_BYTES).encode() in said)


@pytest.mark.parametrize(
    "sent", [b"GET / HT", POST + b"Content-", POST + b"Content-Length: 5\r\n\r\nabcd", CHUNKED], ids=str
)
async def test_a_client_that_stops_in_the_middle_is_told_and_let_go(sent: bytes):
    async with connected(patience_s=0.3) as (reader, writer):
        writer.write(sent)
        status, said = await answer(reader)
        assert (status, await rest(reader)) == (408, b"")
        assert "was not whole after" in said["error"]


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"], ids=["nothing", "one request"])
async def test_a_client_that_has_nothing_more_to_say_is_let_go(sent: bytes):
    async with connected(patience_s=0.3) as (reader, writer):
        writer.write(sent)
        assert (await rest(reader)).count(b"HTTP/1.1") == bool(sent)


async def test_a_slow_client_is_heard_as_long_as_its_body_goes_on():
    async with connected(patience_s=2.0) as (reader, writer):
        writer.write(POST + b"Content-Length: 16000\r\n\r\n")
        for pause_s in (0.2, 0.7, 0.7, 0.7):
            await asyncio.sleep(pause_s)
            writer.write(bytes(4000))
        assert await answer(reader) == (200, 16000)


async def test_a_client_that_never_reads_its_answer_is_cut_off():
    async with connected(patience_s=0.3) as (reader, writer):
        writer.write(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            while not writer.transport.is_closing():  # reading stops when a few hundred KiB wait; a reset is told still
                writer.write(b"\r\n")
                await asyncio.sleep(0.05)
        assert len(await rest(reader)) < LARGE


async def test_a_client_waits_for_its_answer_as_long_as_it_takes():
    async with connected(patience_s=0.3) as (reader, writer):
        writer.write(b"POST /?1 HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody")
        assert await answer(reader) == (200, 4)


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"TLS/1.0"], ids=str)
async def test_who_would_rather_speak_another_protocol_is_answered_again_and_again(protocol: bytes):
    upgrade = POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: " + protocol + b"\r\nContent-Length: 4\r\n\r\n"
    async with connected(patience_s=600) as (reader, writer):
        for _ in range(3):
            writer.write(upgrade)
            await writer.drain()
            writer.write(b"body")
            assert await answer(reader) == (200, 4)
        writer.write((upgrade + b"body") * 50)
        assert [await answer(reader) for _ in range(50)] == [(200, 4)] * 50


@pytest.mark.parametrize(
    "sent", [b"CONNECT a:80 HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01"]
)
async def test_what_is_no_request_to_this_server_is_refused(sent: bytes):
    async with connected(patience_s=600) as (reader, writer):
        writer.write(sent)
        assert await answer(reader) == (400, {"error": "the request is not HTTP/1.1"})
        assert await rest(reader) == b""


def test_a_service_holds_more_connections_than_the_shell_allows_it():
    code = (
        "import resource; from apparate.service.http import allow_connections; allow_connections();"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = ["bash", "-c", 'ulimit -S -n 256 && exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    soft, hard = done.stdout.split()
    assert soft == (str(MOST_FILES) if hard == "-1" or int(hard) > MOST_FILES else hard)
