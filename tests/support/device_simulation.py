"""Several models on one device on a virtual clock: the real batchers and the real scheduler, made-up passes.

Seeded, so that two rules meet the very same arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apparate_worker.batching import Batcher
from apparate_worker.errors import Overloaded
from apparate_worker.passtimes import PassTimes
from apparate_worker.pending import Item, Pending
from apparate_worker.scheduler import Scheduler, Waiting, choose

MAX_BATCH = 8
PARKED_BATCHES, TAIL_BATCHES = 16, 2  # as in apparate_worker.serving
Rule = Callable[[Sequence[Waiting], float], int]


@dataclass(frozen=True)
class Model:
    """A pass of n rows takes `base_ms + n * row_ms`; a share of requests can leave once a part of it is computed."""

    name: str
    base_ms: float
    row_ms: float
    slo_ms: float
    leave: float = 0.6
    depth: float = 0.5
    load: float = 1 / 3
    """Its part of the load."""

    def pass_s(self, rows: int) -> float:
        """Seconds of a whole pass."""
        return (self.base_ms + rows * self.row_ms) / 1e3


THREE = (
    Model("small", 2.0, 1.2, 40.0),
    Model("middle", 4.0, 4.0, 120.0, depth=0.4),
    Model("large", 8.0, 9.0, 300.0, depth=0.6),
)


@dataclass
class Outcome:
    """What became of the requests of one model."""

    asked: int = 0
    in_time: int = 0

    @property
    def missed(self) -> float:
        """Share without an answer in time."""
        return 1 - self.in_time / max(self.asked, 1)


def first_come(waiting: Sequence[Waiting], now: float) -> int:
    """The oldest request first."""
    return min(range(len(waiting)), key=lambda i: waiting[i].arrived)


def earliest_deadline(waiting: Sequence[Waiting], now: float) -> int:
    """The earliest deadline first."""
    return min(range(len(waiting)), key=lambda i: waiting[i].deadlines[0])


RULES: dict[str, Rule] = {"first come": first_come, "earliest deadline": earliest_deadline, "ours": choose}


@dataclass(eq=False)
class _Queue:
    model: Model
    batcher: Batcher
    outcome: Outcome = field(default_factory=Outcome)
    parked: int = 0


class Device:
    """One simulated time. exits: never | report | compact.  patient: requests without a deadline of their own."""

    def __init__(
        self,
        rule: str,
        *,
        load: float,
        exits: str,
        models: Sequence[Model] = THREE,
        patient: bool = False,
        bursts: bool = True,
        seconds: float = 30.0,
        seed: int = 0,
    ) -> None:
        self.now, self.exits, self._patient, self._seconds = 0.0, exits, patient, seconds
        self._random = np.random.default_rng(seed)
        self.scheduler: Scheduler[_Queue] = Scheduler(lambda: self.now, RULES[rule])
        for model in models:
            times = PassTimes([0.0, *(model.pass_s(n) for n in range(1, MAX_BATCH + 1))])
            clock, slo_s = (lambda: self.now), model.slo_ms / 1e3
            batcher = Batcher(
                max_batch=MAX_BATCH, max_delay_s=0.0, max_queue=4096, times=times, wanted_s=slo_s, clock=clock
            )
            self.scheduler.add(_Queue(model, batcher))
        self._coming = sorted(self._arrivals(load, bursts), key=lambda one: one[0])

    def _arrivals(self, load: float, bursts: bool) -> list[tuple[float, _Queue, bool]]:
        """(when, whose, whether it can leave early). load: 1 for what whole batches without exits could serve."""
        found = []
        for one in self.scheduler.servings:
            rate = load * one.model.load * MAX_BATCH / one.model.pass_s(MAX_BATCH)
            now = 0.0
            while now < self._seconds:
                share = (0.4, 1.6)[int(now / 0.7 + one.model.depth * 10) % 2] if bursts else 1.0
                now += self._random.exponential(1 / (rate * share))
                found.append((now, one, bool(self._random.random() < one.model.leave)))
        return found

    def run(self) -> dict[str, Outcome]:
        """By model."""
        coming, at = self._coming, 0
        while True:
            while at < len(coming) and coming[at][0] <= self.now:
                self._put(*coming[at])
                at += 1
            if (taken := self.scheduler.take(0.0)) is not None and taken[1] is not None:
                if taken[1]:
                    self._pass(taken[0], taken[1])
            elif parked := [one for one in self.scheduler.servings if one.parked]:
                self._tail(parked[0])
            elif at < len(coming):
                self.now = coming[at][0]
            else:
                return {one.model.name: one.outcome for one in self.scheduler.servings}

    def _put(self, when: float, queue: _Queue, leaves: bool) -> None:
        queue.outcome.asked += 1
        deadline = math.inf if self._patient else when + queue.model.slo_ms / 1e3
        ticket: Any = leaves
        try:
            queue.batcher.put(Pending({}, 1, ticket, when, deadline=deadline))
        except Overloaded:
            return

    def _pass(self, queue: _Queue, batch: Sequence[Item]) -> None:
        model, rows = queue.model, len(batch)
        began, leaving = self.now, sum(bool(item.request.future) for item in batch)
        early = self.now + model.pass_s(rows) * model.depth
        if self.exits == "never" or not leaving:
            early = end = self.now + model.pass_s(rows)
        elif self.exits == "report" and queue.parked + rows > PARKED_BATCHES * MAX_BATCH:
            end = self.now + model.pass_s(rows)
        else:
            left = rows - leaving
            end = early + (model.pass_s(left) * (1 - model.depth) if left else 0.0)
            queue.parked += leaving if self.exits == "report" else 0
        for item in batch:
            done = early if item.request.future else end
            queue.outcome.in_time += done <= item.request.arrived + model.slo_ms / 1e3
        self._used(queue, end - began)
        queue.batcher.took(rows, end - began)

    def _tail(self, queue: _Queue) -> None:
        rows = min(queue.parked, TAIL_BATCHES * MAX_BATCH)
        queue.parked -= rows
        self._used(queue, queue.model.pass_s(rows) * (1 - queue.model.depth))

    def _used(self, queue: _Queue, seconds: float) -> None:
        self.now += seconds
        self.scheduler.used(queue, seconds)


def missed(outcomes: dict[str, Outcome]) -> float:
    """Share of all requests without an answer in time."""
    return 1 - sum(one.in_time for one in outcomes.values()) / sum(one.asked for one in outcomes.values())
