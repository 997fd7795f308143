"""How large a batch may be and when it is due: by size and age, by additive increase, or by deadlines.

Pure: time comes as an argument. A policy is asked under the batcher's lock, by one thread at a time.
"""

from __future__ import annotations

import math
from typing import Protocol

from apparate.contract.resource import Serving
from apparate_worker.passtimes import PassTimes

DECREASE = 0.9  # of Clipper (NSDI 2017, 4.3.1): a little less whenever a pass was too long
PASS_SHARE = 0.75  # of the objective that a pass may take; the rest is for waiting (by simulation, under bursts)


class Waiting(Protocol):
    """What a policy knows of a request."""

    arrived: float
    deadline: float


class Policy(Protocol):
    """Asked by the batcher."""

    most: int
    """Rows of the largest batch now."""
    waits: bool
    """Whether a batch that is not full may be left waiting for company; else `due` is not asked."""
    refuses: bool
    """Whether requests that would not be answered in time are refused when they come."""

    def due(self, oldest: Waiting, waiting: int, now: float) -> float:
        """When the next batch is due although it is not full."""

    def want(self, slo_s: float) -> None:
        """Keep another objective from now on, inf for none. Any thread."""

    def took(self, rows: int, seconds: float) -> None:
        """Note how long a batch occupied the device."""


class SizeAge:
    """A batch leaves when it is full, or its oldest request has waited for `max_delay_s`: TensorFlow-Serving's rule."""

    refuses = False

    def __init__(self, times: PassTimes, max_batch: int, max_delay_s: float) -> None:
        self.most, self._times, self._max_delay_s = max_batch, times, max_delay_s
        self.waits = max_delay_s > 0

    def due(self, oldest: Waiting, waiting: int, now: float) -> float:
        """The end of the delay, or as late as the oldest can wait and be answered in time, if that is sooner."""
        aged = oldest.arrived + self._max_delay_s
        return aged if oldest.deadline == math.inf else min(aged, oldest.deadline - 2 * self._times.of(waiting))

    def want(self, slo_s: float) -> None:
        """It has no objective."""

    def took(self, rows: int, seconds: float) -> None:
        """Correct the times that `due` and refusals look at."""
        self._times.took(rows, seconds)


class Aimd(SizeAge):
    """As SizeAge, with a largest batch that grows by one while passes keep to the objective, and shrinks when not.

    Source: Clipper, 4.3.1. It finds the largest batch that a device can afford without knowing anything of the device.
    """

    def __init__(self, times: PassTimes, max_batch: int, max_delay_s: float, slo_s: float) -> None:
        super().__init__(times, max_batch, max_delay_s)
        self._max_batch = max_batch
        self.want(slo_s)
        self._limit = 1.0
        self.most = 1

    def want(self, slo_s: float) -> None:
        """Keep another objective from now on."""
        self._longest_s = slo_s * PASS_SHARE

    def took(self, rows: int, seconds: float) -> None:
        """Move the largest batch."""
        super().took(rows, seconds)
        if seconds > self._longest_s:
            self._limit = max(1.0, min(self._limit, rows) * DECREASE)
        elif rows >= self.most:
            self._limit = min(self._limit + 1.0, self._max_batch)
        self.most = int(self._limit)


class Deadline(SizeAge):
    """As SizeAge, and only what will be answered in time waits; no batch is larger than the objective affords.

    Source: Clockwork (OSDI 2020): a pass takes as long as its profile says, so what cannot be met is known at once.
    """

    refuses = True

    def __init__(self, times: PassTimes, max_batch: int, max_delay_s: float, slo_s: float = math.inf) -> None:
        super().__init__(times, max_batch, max_delay_s)
        self._max_batch = max_batch
        self.want(slo_s)
        for _ in range(max_batch):
            self._fit()

    def want(self, slo_s: float) -> None:
        """Keep another objective from now on."""
        self._longest_s = slo_s * PASS_SHARE

    def took(self, rows: int, seconds: float) -> None:
        """Correct the times, and move the largest batch by a row at most."""
        super().took(rows, seconds)
        self._fit()

    def _fit(self) -> None:
        most, of = self.most, self._times.of
        if most > 1 and of(most) > self._longest_s:
            self.most = most - 1
        elif most < self._max_batch and of(most + 1) <= self._longest_s:
            self.most = most + 1


def policy_of(serving: Serving, times: PassTimes) -> Policy:
    """The policy that `spec.serving` asks for."""
    slo_s = serving.slo.latency_ms / 1e3 if serving.slo is not None else math.inf
    most, delay_s = serving.max_batch, serving.max_delay_ms / 1e3
    if serving.batching.policy == "aimd":
        return Aimd(times, most, delay_s, slo_s)
    if serving.batching.policy == "deadline":
        return Deadline(times, most, delay_s, slo_s)
    return SizeAge(times, most, delay_s)
