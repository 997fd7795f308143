"""Which model's batch the device runs next, when several wait: as many answers in time as can be, and no model starved.

The rule, each time the device is free:

1. A model whose oldest request is late already, and that has had less than half of its share of the device lately,
   goes first. So nobody starves, whatever the others' objectives are.
2. Else the batch whose passing leaves the others in the least hurry. A request is in a hurry by how much of the time
   that it allows will be gone: it counts 1 when that is all, and no more after, because late is late; e^-3 when it has
   just come. So a long pass waits for those that it would make late, and a short one of many requests goes early.

What a batch costs is the time until its last *needed* answer, as measured lately: exits shorten it, because what is
left of a pass whose requests are all answered waits for a quiet moment.

The second rule is in the manner of EdgeServing (a "stability score" of the queues, chosen greedily). Where requests are
given up at their deadlines it misses fewer objectives than earliest deadline first, see docs/worker.md.
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
HURRY = 3.0  # e^-3 of one that is late, is a request that has just come
STARVED = 0.5  # part of its share below which a late model goes first


@dataclass(frozen=True, slots=True)
class Waiting:
    """The next batch of one model.

    arrived    its oldest request, monotonic seconds
    deadlines  of its requests, in order of arrival; at least one
    costs_s    until its last needed answer
    share      of the device that the model has had lately, 1 for as much as its due
    """

    arrived: float
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

    def left_behind(chosen: int) -> tuple[float, float]:
        then = now + waiting[chosen].costs_s
        hurry = sum(_hurry(one, then) for i, one in enumerate(waiting) if i != chosen)
        return hurry, waiting[chosen].share

    return min(range(len(waiting)), key=left_behind)


def _hurry(one: Waiting, then: float) -> float:
    """Of all requests of a batch at a time."""
    allowed = max(one.deadlines[0] - one.arrived, 1e-6)
    return sum(math.exp(HURRY * min(0.0, (then - deadline) / allowed)) for deadline in one.deadlines)


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
Rule = Callable[[Sequence[Waiting], float], int]


class Scheduler(Generic[T]):
    """The queues of one device. `take` and `used` from the device thread, the rest from any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, rule: Rule = choose) -> None:
        self.changed = threading.Condition()
        self.servings: tuple[T, ...] = ()
        self._uses: dict[int, Use] = {}
        self._clock, self._rule = clock, rule

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
        """Count the device time that this one has had; nobody asks while it is the only one."""
        if len(self.servings) > 1:
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
                    return one, one.batcher.pop(now)
                if now >= give_up:
                    return None
                self.changed.wait(wait_s)
                if not self.servings:
                    return None  # it may be that none will come
                now = self._clock()

    def _choice(self, due: Sequence[T], now: float) -> T:
        share = len(self.servings) / SHARE_S
        return due[self._rule([self._waiting(one, now, share) for one in due], now)]

    def _waiting(self, one: T, now: float, share: float) -> Waiting:
        arrived, deadlines, costs_s = one.batcher.outlook()
        return Waiting(arrived, deadlines, costs_s, self._uses[id(one)].spent_s(now) * share)
