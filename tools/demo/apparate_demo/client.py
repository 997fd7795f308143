"""The client process: sends slices of traffic open loop and times the answers.

A process of its own, so that its Python shares no lock with a server. Requests are made before a slice starts and
answers are read after it ends; in between it only sends and takes the time.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from apparate_demo import oip
from apparate_demo.load import Slice
from apparate_demo.ticker import Ticker
from apparate_demo.transport import Transport, connect

LEAD_S = 0.05  # from the end of preparations to the first arrival
ANSWER_TIMEOUT_S = 60.0  # for the last answers of a slice; a queue as long as this is a broken run
SATURATION_WARM_UP = 0.5  # share of a saturation run that is not counted: what a burst put off must be paid by then

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Target:
    """A server of one model."""

    address: str
    model: str
    protocol: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of the requests of one slice, times in seconds from its start.

    label is -1 where there was no answer, and `error` then says why for the first such request.
    """

    scheduled: Floats
    sent: Floats
    done: Floats
    items: Ints
    label: Ints
    exit_ramp: Ints
    revision: Ints
    error: str = ""

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """[n] whether there was an answer."""
        found: npt.NDArray[np.bool_] = self.label >= 0
        return found


@dataclass(frozen=True)
class Failure:
    """A job that went wrong in the client process."""

    message: str


class ClientError(RuntimeError):
    """The client process could not do its job; the message is its own."""


class Client:
    """The client process, seen from the demo. Use as a context manager."""

    def __init__(self, traffic: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(theirs, traffic), daemon=True, name="demo-client")
        self._process.start()
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join(5)

    @property
    def pid(self) -> int:
        """Process id of the client process."""
        return self._process.pid or 0

    def run(self, target: Target, piece: Slice) -> Outcome:
        """Send one slice open loop. Raises ClientError."""
        outcome: Outcome = self._do("run", target, piece)
        return outcome

    def saturate(self, target: Target, *, seconds: float, concurrency: int) -> float:
        """Answers a second with `concurrency` requests always under way (closed loop: throughput, not latency)."""
        rate: float = self._do("saturate", target, seconds, concurrency)
        return rate

    def ping(self, target: Target, count: int = 200) -> Floats:
        """[count] seconds of calls that do no work, one after the other."""
        times: Floats = self._do("ping", target, count)
        return times

    def _do(self, name: str, *args: Any) -> Any:
        try:
            self._pipe.send((name, args))
            answer = self._pipe.recv()
        except (EOFError, BrokenPipeError):
            raise ClientError("the client process ended") from None
        if isinstance(answer, Failure):
            raise ClientError(answer.message)
        return answer


def _main(pipe: Connection, traffic: Path) -> None:
    import signal

    import uvloop

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the demo's to handle
    uvloop.run(_serve(pipe, oip.Traffic.load(traffic)))


async def _serve(pipe: Connection, traffic: oip.Traffic) -> None:
    transports: dict[Target, Transport] = {}
    jobs: dict[str, Any] = {"run": run_open_loop, "saturate": run_closed_loop, "ping": run_pings}
    loop = asyncio.get_running_loop()
    while True:
        try:
            name, (target, *args) = await loop.run_in_executor(None, pipe.recv)
        except EOFError:
            break
        try:
            if target not in transports:
                transports[target] = connect(target.protocol, target.address, target.model)
            pipe.send(await jobs[name](transports[target], traffic, *args))
        except Exception as error:  # noqa: BLE001 - outermost: told to the demo, which raises it
            pipe.send(Failure(f"{type(error).__name__}: {error}"))
    for transport in transports.values():
        await transport.close()


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def run_open_loop(transport: Transport, traffic: oip.Traffic, piece: Slice) -> Outcome:
    """Send every request of a slice at its time, whatever became of the earlier ones."""
    requests = {int(i): transport.request(traffic.item(int(i))) for i in np.unique(piece.items)}
    bodies = [requests[int(i)] for i in piece.items]
    await transport.ping()
    with _no_collection():
        times, answers = await _send_on_time(transport, bodies, piece.arrivals)
    return _outcome(transport, piece, times, answers)


async def _send_on_time(transport: Transport, bodies: list[bytes], arrivals: Floats) -> tuple[Floats, list[Any]]:
    """([n, 2] sent and done, seconds from the start of the slice; [n] answers or what was raised)."""
    count, clock, loop = len(bodies), time.monotonic, asyncio.get_running_loop()
    start = clock() + LEAD_S
    due = (arrivals + start).tolist()
    times = np.full((count, 2), np.nan)
    answers: list[Any] = [None] * count
    tasks: list[asyncio.Task[None]] = []

    async def one(i: int) -> None:
        times[i, 0] = clock() - start
        try:
            answers[i] = await transport.send(bodies[i])
        except Exception as error:  # noqa: BLE001 - any failure is a request without an answer, and is counted
            answers[i] = error
        times[i, 1] = clock() - start

    finished = loop.create_future()

    def send_due() -> None:
        while len(tasks) < count and due[len(tasks)] <= clock():
            tasks.append(loop.create_task(one(len(tasks))))
        if len(tasks) < count:
            ticker.at(due[len(tasks)])
        elif not finished.done():
            finished.set_result(None)

    ticker = Ticker(send_due)
    try:
        ticker.at(due[0])
        await finished
        _, late = await asyncio.wait(tasks, timeout=ANSWER_TIMEOUT_S)
    finally:
        ticker.close()
    for task in late:
        task.cancel()
    return times, answers


def _outcome(transport: Transport, piece: Slice, times: Floats, answers: list[Any]) -> Outcome:
    read = np.full((len(answers), 3), -1, np.int64)
    error = ""
    for i, answer in enumerate(answers):
        try:
            if answer is None or isinstance(answer, Exception):
                raise oip.BadAnswer(f"no answer: {answer}")
            found = transport.read(answer)
            read[i] = found.label, found.exit_ramp, found.revision
        except ValueError as bad:
            error = error or str(bad)
    sent, done = times.T
    return Outcome(piece.arrivals, sent, done, piece.items, read[:, 0], read[:, 1], read[:, 2], error)


async def run_closed_loop(transport: Transport, traffic: oip.Traffic, seconds: float, concurrency: int) -> float:
    """Answers a second with `concurrency` requests always under way, after a warm-up. Raises BadAnswer."""
    picked = np.linspace(0, len(traffic) - 1, 256).astype(int)
    bodies = [transport.request(traffic.item(int(i))) for i in picked]
    clock = time.monotonic
    begin = clock()
    warm, end = begin + seconds * SATURATION_WARM_UP, begin + seconds
    done: list[float] = []

    async def keep_asking(first: int) -> None:
        i = first
        while clock() < end:
            answer = await transport.send(bodies[i % len(bodies)])
            done.append(clock())
            if i == first:
                transport.read(answer)  # errors can be quick, too: they are no throughput
            i += concurrency

    with _no_collection():
        await asyncio.gather(*(keep_asking(i) for i in range(concurrency)))
    return float(sum(warm <= t < end for t in done)) / (end - warm)


async def run_pings(transport: Transport, traffic: oip.Traffic, count: int) -> Floats:
    """[count] seconds of calls that do no work: what the protocol, the event loops and this client cost alone."""
    took: Floats = np.zeros(count)
    with _no_collection():
        for i in range(count):
            before = time.monotonic()
            await transport.ping()
            took[i] = time.monotonic() - before
    return took
