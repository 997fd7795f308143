"""Sending frames at a steady rate over HTTP and gRPC until told to stop, and printing what became of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

from apparate_demo.oip import BadAnswer, Traffic
from apparate_demo.traffic.links import ANSWER_WITHIN_S, CONNECT_FOR_S, links
from apparate_demo.traffic.materials import Ints
from apparate_demo.traffic.windows import Ledger, Result
from apparate_demo.transport import Transport

MOST_IN_FLIGHT = 256
"""Requests of one protocol under way; what is due above it counts as failed: a server may hang."""


class Sender:
    """One protocol's open loop: a request is sent when it is due, whatever became of those before."""

    def __init__(
        self, protocol: str, ways: list[Transport], traffic: Traffic, plain: Ints, take: Callable[[Result], None]
    ):
        self._protocol, self._ways, self._traffic, self._plain, self._take = protocol, ways, traffic, plain, take
        self._bodies: dict[int, bytes] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, stop: asyncio.Event, first: int) -> None:
        """Send `rate` requests a second from frame `first` on, until `stop` is set and the last answer is there."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for i in itertools.count():
            wait = begin + i / rate - loop.time()
            if wait > 0:
                await asyncio.sleep(wait)
            if stop.is_set():
                break
            if len(self._under_way) >= MOST_IN_FLIGHT:
                now = time.time()
                self._take(Result(self._protocol, now, now, error=f"{MOST_IN_FLIGHT} requests wait for answers"))
                continue
            task = loop.create_task(self._one((first + i) % len(self._traffic), self._ways[i % len(self._ways)]))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        if self._under_way:
            await asyncio.wait(self._under_way)
        for way in self._ways:
            await way.close()

    async def _one(self, item: int, way: Transport) -> None:
        sent = time.time()
        try:
            async with asyncio.timeout(CONNECT_FOR_S + ANSWER_WITHIN_S):
                answer = way.read(await way.send(self._body(item, way)))
        except BadAnswer as error:
            self._take(Result(self._protocol, sent, time.time(), error=str(error)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the request has no answer, and is counted
            self._take(Result(self._protocol, sent, time.time(), error=_words(error)))
        else:
            agrees = answer.label == self._plain[item]
            self._take(
                Result(self._protocol, sent, time.time(), answer.label, agrees, answer.exit_ramp, answer.revision)
            )

    def _body(self, item: int, way: Transport) -> bytes:
        if item not in self._bodies:
            self._bodies[item] = way.request(self._traffic.item(item))
        return self._bodies[item]


def _words(error: Exception) -> str:
    details = getattr(error, "details", None)  # of gRPC
    code = getattr(error, "code", None)
    said = f"{code()}: {details()}" if callable(details) and callable(code) else str(error)
    return f"{type(error).__name__}: {said}"[:500]


async def send(
    addresses: Mapping[str, str],
    model: str,
    traffic: Traffic,
    plain: Ints,
    *,
    rate: float,
    seconds: float,
    tell: Callable[[dict[str, Any]], None],
) -> None:
    """Send to every address (by protocol) in equal shares for so long, or until SIGTERM."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.call_later(seconds, stop.set)
    ledger = Ledger(late_s=1.0)
    senders = [
        Sender(protocol, links(protocol, address, model), traffic, plain, ledger.take)
        for protocol, address in addresses.items()
    ]
    # each protocol sends all frames in their order; the second one half a lap later, or both drift at once
    firsts = [i * len(traffic) // len(senders) for i in range(len(senders))]
    tasks = [
        loop.create_task(one.run(rate / len(senders), stop, first)) for one, first in zip(senders, firsts, strict=True)
    ]
    while any(not task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=0.5)
        for line in ledger.due(time.time()):
            tell(line)
    for line in ledger.due(float("inf")):
        tell(line)
    await asyncio.gather(*tasks)


def print_line(line: Mapping[str, Any]) -> None:
    """One line of JSON on stdout, at once."""
    print(json.dumps(line), flush=True)
