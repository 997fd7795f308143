"""A worker's queue on a virtual clock: the real batcher and policies, arrivals in bursts, a device with noisy passes.

Nothing here is real but the code that decides. Seeded, so that two policies meet the very same arrivals.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from apparate_worker.admission import HIGH, LOW
from apparate_worker.batching import Batcher
from apparate_worker.errors import Overloaded
from apparate_worker.passtimes import PassTimes
from apparate_worker.pending import Item, Pending
from apparate_worker.policies import Aimd, Deadline, Policy, SizeAge
from apparate_worker.scheduler import Scheduler


@dataclass(frozen=True)
class Queue:
    """What a scheduler has of a model."""

    batcher: Batcher


def take(batcher: Batcher, clock: Callable[[], float] = time.monotonic, timeout_s: float = 0.0) -> list[Item]:
    """The batch that is due, as the scheduler of a device takes it; empty without one."""
    scheduler: Scheduler[Queue] = Scheduler(clock)
    scheduler.add(Queue(batcher))
    found = scheduler.take(timeout_s)
    return (found[1] or []) if found is not None else []


POLICIES = ("sizeAge", "aimd", "deadline")


@dataclass(frozen=True)
class Device:
    """A pass of n rows takes `base_ms + n * row_ms`, times what the noise says; the profile knows it without noise."""

    base_ms: float = 1.0
    row_ms: float = 1.0
    noise: float = 0.15
    profile_off: float = 1.0
    """What the profile says, as a multiple of the truth."""

    def pass_s(self, rows: int) -> float:
        """Seconds without noise."""
        return (self.base_ms + rows * self.row_ms) / 1e3


@dataclass(frozen=True)
class Load:
    """Arrivals: a Poisson process whose rate, as a share of what whole batches could serve, changes by turns."""

    shares: tuple[float, ...] = (0.5, 2.5)
    turn_s: float = 0.5
    """Mean length of a turn."""
    low: float = 0.25
    """Share of requests of the low class."""
    seconds: float = 20.0
    slo_s: float = 0.05


@dataclass
class Outcome:
    """What became of the requests of one class; each is counted once."""

    asked: int = 0
    in_time: int = 0
    late: int = 0
    refused: int = 0
    """With 429: when they came, or when they gave up their places."""
    given_up: int = 0
    """Still waiting at their deadline."""

    @property
    def missed(self) -> float:
        """Share without an answer in time."""
        return 1 - self.in_time / max(self.asked, 1)


@dataclass
class Outcomes:
    """Of one simulated time."""

    high: Outcome = field(default_factory=Outcome)
    low: Outcome = field(default_factory=Outcome)
    batches: list[int] = field(default_factory=list)

    @property
    def all(self) -> Outcome:
        """Both classes together."""
        return Outcome(*(getattr(self.high, f.name) + getattr(self.low, f.name) for f in fields(Outcome)))


class Ticket:
    """The future of a request that nobody awaits; tells of an error."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome, self._done = outcome, False

    def done(self) -> bool:
        """Whether it has its end."""
        return self._done

    def set_result(self, _: None) -> None:
        """End it."""
        self._done = True

    def set_exception(self, _: Exception) -> None:
        """Refuse it."""
        self._done = True
        self._outcome.refused += 1


def arrivals(load: Load, device: Device, max_batch: int, seed: int) -> Iterator[tuple[float, int]]:
    """(time, class) in order."""
    random = np.random.default_rng(seed)
    full = max_batch / device.pass_s(max_batch)
    now, turn_ends, turn = 0.0, random.exponential(load.turn_s), 0
    while True:
        now += random.exponential(1 / (full * load.shares[turn % len(load.shares)]))
        if now >= load.seconds:
            return
        if now >= turn_ends:
            turn, turn_ends = turn + 1, now + random.exponential(load.turn_s)
        yield now, LOW if random.random() < load.low else HIGH


def simulate(
    policy: str,
    load: Load,
    device: Device,
    *,
    max_batch: int = 8,
    max_queue: int = 256,
    max_delay_s: float = 0.0,
    leave: bool = True,
    seed: int = 0,
) -> Outcomes:
    """What becomes of requests. leave: clients go at their deadline; under `deadline` all do, whatever they say."""
    times = PassTimes([0.0] + [device.pass_s(n) * device.profile_off for n in range(1, max_batch + 1)])
    made: Callable[[], Policy] = {
        "sizeAge": lambda: SizeAge(times, max_batch, max_delay_s),
        "aimd": lambda: Aimd(times, max_batch, max_delay_s, load.slo_s),
        "deadline": lambda: Deadline(times, max_batch, max_delay_s, load.slo_s),
    }[policy]
    run = _Run(load, device, arrivals(load, device, max_batch, seed), np.random.default_rng(seed + 1))
    run.leave = leave or policy == "deadline"
    run.batcher = Batcher(
        max_batch=max_batch,
        max_delay_s=max_delay_s,
        max_queue=max_queue,
        times=times,
        policy=made(),
        clock=lambda: run.now,
    )
    return run.to_the_end()


@dataclass
class _Run:
    load: Load
    device: Device
    coming: Iterator[tuple[float, int]]
    random: np.random.Generator
    leave: bool = True
    now: float = 0.0
    idle: bool = True
    outcomes: Outcomes = field(default_factory=Outcomes)
    events: list[tuple[float, int, Callable[[Any], None], Any]] = field(default_factory=list)
    batcher: Batcher = field(init=False)
    count: int = 0

    def to_the_end(self) -> Outcomes:
        self._next_arrival()
        while self.events:
            self.now, _, what, value = heapq.heappop(self.events)
            what(value)
        assert self.batcher.waiting == 0
        return self.outcomes

    def _at(self, when: float, what: Callable[[Any], None], value: Any = None) -> None:
        self.count += 1
        heapq.heappush(self.events, (when, self.count, what, value))

    def _next_arrival(self) -> None:
        if (found := next(self.coming, None)) is not None:
            self._at(found[0], self._arrive, found[1])

    def _arrive(self, priority: int) -> None:
        self._next_arrival()
        outcome = self.outcomes.high if priority == HIGH else self.outcomes.low
        outcome.asked += 1
        deadline = self.now + self.load.slo_s if self.leave else math.inf
        ticket: Any = Ticket(outcome)
        request = Pending({}, 1, ticket, self.now, priority=priority, deadline=deadline)
        try:
            self.batcher.put(request)
        except Overloaded as error:
            request.fail(error)
            return
        if self.leave:
            self._at(deadline, self._expire, (request, outcome))
        self._start()

    def _expire(self, of: tuple[Pending, Outcome]) -> None:
        request, outcome = of
        if not request.taken and not request.future.done():
            request.future.set_result(None)
            outcome.given_up += 1
            self.batcher.drop(request)

    def _start(self, _: None = None) -> None:
        if not self.idle:
            return
        if batch := take(self.batcher, lambda: self.now):
            self.idle = False
            self.outcomes.batches.append(len(batch))
            noise = float(np.exp(self.random.normal(0.0, self.device.noise)))
            self._at(self.now + self.device.pass_s(len(batch)) * noise, self._finish, (batch, self.now))
        elif (due_s := self.batcher.due_s(self.now)) is not None:
            self._at(self.now + max(due_s, 1e-6), self._start)

    def _finish(self, done: tuple[list[Item], float]) -> None:
        self.idle = True
        batch, began = done
        self.batcher.took(len(batch), self.now - began)
        for item in batch:
            request = item.request
            outcome = self.outcomes.high if request.priority == HIGH else self.outcomes.low
            request.future.set_result(None)
            if self.now <= request.arrived + self.load.slo_s:
                outcome.in_time += 1
            else:
                outcome.late += 1
        self._start()
