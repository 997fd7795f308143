"""What leaves through the transport of an HTTP connection, write by write."""

from __future__ import annotations

import asyncio

from apparate.service.http import OneWrite

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Sink:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def test_head_and_body_leave_in_one_write():
    sink = Sink()
    transport = OneWrite(sink, asyncio.get_running_loop())
    transport.write(HEAD)
    transport.write(b"{}")
    transport.write(b"more")
    assert sink.writes == [HEAD + b"{}", b"more"]


async def test_a_head_that_nothing_follows_leaves_with_the_next_turn_of_the_loop():
    sink = Sink()
    OneWrite(sink, asyncio.get_running_loop()).write(HEAD)
    await asyncio.sleep(0)
    assert sink.writes == [HEAD]


async def test_a_head_leaves_before_its_connection_closes():
    sink = Sink()
    transport = OneWrite(sink, asyncio.get_running_loop())
    transport.write(HEAD)
    transport.close()
    assert (sink.writes, transport.is_closing()) == ([HEAD], True)


async def test_a_client_that_waits_to_send_its_body_hears_at_once():
    sink = Sink()
    OneWrite(sink, asyncio.get_running_loop()).write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert sink.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
