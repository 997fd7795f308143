"""The load generator against real servers: careful with connections, honest about requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest

from apparate_demo.oip import Traffic
from apparate_demo.traffic import flow, links
from apparate_demo.transport import HttpTransport
from support.oip_server import REVISION, an_oip_server, http_answer

TRAFFIC = Traffic({"image": np.array([0, 255], np.uint8)[:, None, None, None] * np.ones((1, 4, 4, 3), np.uint8)})
RIGHT, WRONG = np.array([0, 1]), np.array([1, 0])


async def send(addresses: dict[str, str], plain: np.ndarray, seconds: float = 1.0, model: str = "m") -> list[dict]:
    lines: list[dict] = []
    await flow.send(addresses, model, TRAFFIC, plain, rate=100, seconds=seconds, tell=lines.append)
    return lines


def total(lines: list[dict], field: str) -> int:
    return sum(one[field] for one in lines if one["kind"] == "second")


async def test_both_protocols_are_sent_to_and_answers_are_told():
    with an_oip_server() as addresses:
        lines = await send(addresses, RIGHT)
    assert {one["protocol"] for one in lines} == {"http", "grpc"} and not total(lines, "failed")
    assert 0 < total(lines, "answered") <= 110 and {one["revision"] for one in lines} == {REVISION}


async def test_answers_that_are_not_the_plain_models_are_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("apparate_demo.traffic.windows.WINDOW", 20)
    with an_oip_server() as addresses:
        lines = await send({"http": addresses["http"]}, np.array([0, 0]))
    shares = {one["agreement"] for one in lines if one["kind"] == "window"}
    assert shares and all(0.3 < share < 0.7 for share in shares)


async def test_an_error_status_is_a_failure_with_its_text():
    with an_oip_server() as addresses:
        lines = await send({"http": addresses["http"]}, RIGHT, seconds=0.3, model="broken")
    errors = {one["error"] for one in lines if one["kind"] == "failure"}
    assert errors == {"HTTP 500: broken"} and not total(lines, "answered")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_nobody_to_connect_to_is_a_failure_only_after_a_while(protocol: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(links, "CONNECT_FOR_S", 0.3)
    lines = await send({protocol: "127.0.0.1:1"}, RIGHT, seconds=0.2)
    waited = [one["done"] - one["sent"] for one in lines if one["kind"] == "failure"]
    assert len(waited) == total(lines, "failed") > 5 and min(waited) >= 0.25


@asynccontextmanager
async def a_closing_server(every: int) -> AsyncIterator[str]:
    """An HTTP server that says of each so-manieth answer that it closes the connection, and does so a little later."""
    numbers = itertools.count(1)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
                answer = http_answer(head, headers, await reader.readexactly(int(headers.get("content-length", 0))))
                last = next(numbers) % every == 0
                writer.write(answer.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) if last else answer)
                if last:
                    await asyncio.sleep(0.05)
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_connection_that_the_server_is_about_to_close_is_not_used_again():
    async with a_closing_server(every=3) as address:
        transport = HttpTransport(address, "m")
        request = transport.request(TRAFFIC.item(1))
        answers = [transport.read(await transport.send(request)).label for _ in range(12)]
        await transport.close()
    assert answers == [1] * 12
