"""Which model's batch the device runs next, when several wait: as many answers in time as can be, and no model starved.

The rule, each time the device is free:

1. A model whose oldest request is late already, and that has had less than half of its share of the device lately,
   goes first. So nobody starves, whatever the others' deadlines are.
2. Of the batches that can still be in time, as many requests as possible are put in an order in which they are:
   earliest deadline first, and where that makes one late, the batch goes that costs most for each request in time, of a
   model above its share before any other (Moore and Hodgson, Management Science 15(1), 1968). The first in that order
   runs.
3. If none can be in time, the model that has had the least of the device.

What a batch costs is the time until its last *needed* answer, as measured lately: exits shorten it, because what is
left of a pass whose requests are all answered waits for a quiet moment.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from apparate_worker.batching import Batcher
from apparate_worker.pending import Item

SHARE_S = 2.0  # time over which shares of the device are looked at
STARVED = 0.5  # part of its share below which a late model goes first


@dataclass(frozen=True, slots=True)
class Waiting:
    """The next batch of one model.

    deadlines  of its requests, monotonic seconds, in order of arrival; at least one
    costs_s    until its last needed answer
    share      of the device that the model has had lately, 1 for as much as its due
    """

    deadlines: Sequence[float]
    costs_s: float
    share: float


def choose(waiting: Sequence[Waiting], now: float) -> int:
    """Index of the batch to run next; see the module. There must be one."""
    if len(waiting) == 1:
        return 0
    starved = [i for i, one in enumerate(waiting) if one.deadlines[0] < now and one.share < STARVED]
    if starved:
        return min(starved, key=lambda i: waiting[i].share)
    planned: list[tuple[float, int, int]] = []  # (deadline, index, requests in time)
    for i, one in enumerate(waiting):
        in_time = [deadline for deadline in one.deadlines if deadline >= now + one.costs_s]
        if in_time:
            planned.append((min(in_time), i, len(in_time)))
    planned.sort()
    kept: list[tuple[float, int, int]] = []
    end = now
    for job in planned:
        kept.append(job)
        end += waiting[job[1]].costs_s
        if end > job[0]:
            dropped = max(kept, key=lambda job: (waiting[job[1]].share > 1, waiting[job[1]].costs_s / job[2]))
            kept.remove(dropped)
            end -= waiting[dropped[1]].costs_s
    if kept:
        return kept[0][1]
    return min(range(len(waiting)), key=lambda i: waiting[i].share)


@dataclass(slots=True)
class Use:
    """Device time that one model has had, forgotten over SHARE_S."""

    _spent_s: float = 0.0
    _at: float = 0.0

    def add(self, took_s: float, now: float) -> None:
        """Count device time that ended now."""
        self._spent_s = self.spent_s(now) + took_s
        self._at = now

    def spent_s(self, now: float) -> float:
        """What is remembered of it; SHARE_S for a device that did nothing else."""
        return self._spent_s * math.exp((self._at - now) / SHARE_S)


class Queued(Protocol):
    """Something that has a queue for the device."""

    batcher: Batcher


T = TypeVar("T", bound=Queued)


class Scheduler(Generic[T]):
    """The queues of one device. `take` and `used` from the device thread, the rest from any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.changed = threading.Condition()
        self.servings: tuple[T, ...] = ()
        self._uses: dict[int, Use] = {}
        self._clock = clock

    def add(self, serving: T) -> None:
        """Let this one have batches, too."""
        serving.batcher.tell(self.changed)
        with self.changed:
            self._uses[id(serving)] = Use()
            self.servings = (*self.servings, serving)
            self.changed.notify()

    def remove(self, serving: T) -> None:
        """Forget one whose batcher is closed."""
        with self.changed:
            self.servings = tuple(one for one in self.servings if one is not serving)
            del self._uses[id(serving)]

    def used(self, serving: T, seconds: float) -> None:
        """Count the device time that this one has had."""
        self._uses[id(serving)].add(seconds, self._clock())

    def due(self) -> bool:
        """Whether a batch would start at once."""
        return any(one.batcher.due() for one in self.servings)

    def crowd(self, beside: object) -> bool:
        """Whether a whole batch of another one waits."""
        return any(one.batcher.crowd for one in self.servings if one is not beside)

    def take(self, timeout_s: float) -> tuple[T, list[Item] | None] | None:
        """Whose turn it is, and the batch, None for one whose batcher is closed; None after `timeout_s` without any."""
        now = self._clock()
        give_up = now + timeout_s
        with self.changed:
            while True:
                wait_s, due = give_up - now, []
                for one in self.servings:
                    if one.batcher.closed:
                        return one, None
                    due_s = one.batcher.due_s(now)
                    if due_s is None:
                        continue
                    if due_s <= 0:
                        due.append(one)
                    elif due_s < wait_s:
                        wait_s = due_s
                if due:
                    one = due[0] if len(due) == 1 else self._choice(due, now)
                    return one, one.batcher.take(0.0)
                if now >= give_up:
                    return None
                self.changed.wait(wait_s)
                if not self.servings:
                    return None  # it may be that none will come
                now = self._clock()

    def _choice(self, due: Sequence[T], now: float) -> T:
        share = len(self.servings) / SHARE_S
        return due[choose([self._waiting(one, now, share) for one in due], now)]

    def _waiting(self, one: T, now: float, share: float) -> Waiting:
        deadlines, costs_s = one.batcher.outlook()
        return Waiting(deadlines, costs_s, self._uses[id(one)].spent_s(now) * share)
