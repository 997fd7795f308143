"""Requests wait here and leave as batches: each class in order of arrival, the low one behind the high one.

The event loop puts, the device thread takes: one hop between a request's arrival and its pass, and none when the device
is idle. Whoever is cancelled or out of time while waiting is dropped before the pass. When a batch is due, and how
large it is, is the policy's business (`policies.py`); who may wait is that of `admission.py`.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.contract.resource import TensorSpec
from apparate.feedback import FINAL
from apparate.plan import newest
from apparate_worker.admission import HIGH, LOW, LOW_ONE_IN, Admission
from apparate_worker.errors import NotReady, WorkerError
from apparate_worker.passtimes import PassTimes
from apparate_worker.policies import Policy, SizeAge
from apparate_worker.pressure import Pressure, Stage
from apparate_worker.release import Limits

Array = npt.NDArray[Any]
ALIGNMENT = 64  # bytes
SWEEP_ABOVE = 64  # dropped requests that may stay in a queue before it is rebuilt; they hold their tensors
LOW_SHARE = 0.5  # of the queue that the low class may fill
WANTED_S = 1.0  # where nobody has said: when several models want the device, one with an objective goes first
UNKNOWN_S = 1e-3  # of a pass per row, where nobody has measured


class Pending:
    """One request on its way: its items, and the answers that have come so far.

    `future` belongs to the event loop and becomes ready when every item has its answer.
    """

    __slots__ = (
        "arrived",
        "count",
        "deadline",
        "dropped",
        "exits",
        "future",
        "inputs",
        "labels",
        "left",
        "limits",
        "logits",
        "priority",
        "revision",
        "taken",
        "trace",
    )

    def __init__(
        self,
        inputs: Mapping[str, Array],
        count: int,
        future: asyncio.Future[None],
        arrived: float,
        *,
        priority: int = HIGH,
        deadline: float = math.inf,
    ) -> None:
        """priority: HIGH or LOW. deadline: an answer is of no use after it, on the clock of `arrived`; a timer of the
        caller drops the request then."""
        self.inputs, self.count, self.future, self.arrived = inputs, count, future, arrived
        self.priority, self.deadline = priority, deadline
        self.taken = 0
        """Items that the device has; written under the batcher's lock."""
        self.dropped = False
        self.left = count
        self.logits: Array | None = None
        self.labels = np.zeros(count, np.int64)
        self.exits = np.full(count, FINAL, np.int32)
        self.revision = 0
        self.limits: Limits | None = None
        """How far it lets early exits go, where that is less than the plan does."""
        self.trace: Any = None
        """Its span, when it is traced."""

    def answer(self, index: int, logits: Array, label: int, ramp: int, revision: int) -> None:
        """Take the answer of one item. Event loop only."""
        if self.future.done():
            return
        if self.logits is None:
            self.logits = np.empty((self.count, len(logits)), np.float32)
        self.logits[index] = logits
        self.labels[index], self.exits[index] = label, ramp
        self.revision = newest(self.revision, revision)
        self.left -= 1
        if not self.left:
            self.future.set_result(None)

    def fail(self, error: WorkerError) -> None:
        """The request gets `error` for an answer, unless it has one. Event loop only."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True, slots=True)
class Item:
    """One row of one request."""

    request: Pending
    index: int


class Line:
    """Requests of one class in order of arrival, each until its last item is taken. Used under the batcher's lock."""

    __slots__ = ("gone", "most", "requests", "waiting")

    def __init__(self, most: int) -> None:
        self.requests: deque[Pending] = deque()
        self.most, self.waiting = most, 0
        """Items: how many may wait, and how many do."""
        self.gone = 0
        """Requests among `requests` that were dropped."""

    def drop(self, request: Pending) -> int:
        """Forget what still waits of a request; how many items that was."""
        left = request.count - request.taken
        request.dropped = True
        if left:
            self.waiting -= left
            self.gone += 1
            if self.gone > SWEEP_ABOVE + len(self.requests) - self.gone:
                self.requests = deque(one for one in self.requests if not one.dropped)
                self.gone = 0
        return left

    def head(self) -> Pending | None:
        """The oldest request."""
        requests = self.requests
        while requests and requests[0].dropped:
            requests.popleft()
            self.gone -= 1
        return requests[0] if requests else None

    def take(self, rows: int, into: list[Item]) -> None:
        """Append up to `rows` items."""
        requests, before = self.requests, len(into)
        room = rows
        while room > 0 and requests:
            request = requests[0]
            if request.dropped:
                self.gone -= 1
            elif request.count == 1:
                request.taken = 1
                into.append(Item(request, 0))
                room -= 1
            else:
                first = request.taken
                last = request.taken = min(first + room, request.count)
                into.extend([Item(request, i) for i in range(first, last)])
                room -= last - first
                if last < request.count:
                    break
            requests.popleft()
        self.waiting -= len(into) - before

    def deadlines(self, rows: int, wanted_s: float, into: list[float]) -> None:
        """Append when answers of the next `rows` items are wanted: at their deadline, or `wanted_s` after arrival."""
        most = len(into) + rows
        for request in self.requests:
            if len(into) >= most:
                break
            if not request.dropped:
                items = min(request.count - request.taken, most - len(into))
                into += [min(request.deadline, request.arrived + wanted_s)] * items

    def newest(self, items: int) -> list[Pending]:
        """Requests, newest first, that have so many items together and have not begun; empty when there are fewer."""
        found, short = [], items
        for request in reversed(self.requests):
            if short <= 0 or request.taken:
                break
            if not request.dropped:
                found.append(request)
                short -= request.count
        return found if short <= 0 else []

    def clear(self) -> list[Pending]:
        """Forget all; those that were waiting."""
        left = [request for request in self.requests if not request.dropped]
        self.requests.clear()
        self.waiting = self.gone = 0
        return left


class Batcher:
    """The queue. `put` and `drop` from the event loop, `take` and `took` from the device thread.

    times      how long passes take; by default a guess that passes correct
    policy     by default SizeAge
    low_share  of the queue, that the low class may fill
    wanted_s   an answer is wanted so long after its request has come, where the request has no deadline
    """

    def __init__(
        self,
        *,
        max_batch: int,
        max_delay_s: float,
        max_queue: int,
        times: PassTimes | None = None,
        policy: Policy | None = None,
        low_share: float = LOW_SHARE,
        pressure: Pressure | None = None,
        wanted_s: float = WANTED_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        times = times or PassTimes([UNKNOWN_S * rows for rows in range(max_batch + 1)])
        self.policy: Policy = policy or SizeAge(times, max_batch, max_delay_s)
        self.pressure = pressure or Pressure()
        self._clock, self._times = clock, times
        self._changed = threading.Condition()
        self._max_queue, self._wanted_s = max_queue, wanted_s
        self._lines = (Line(max_queue), Line(max(1, int(max_queue * low_share))))
        self.admission = Admission(self._lines, max_queue, times, self.pressure)
        self._waiting = self._turn = 0
        self._hurried = self._dated = False
        self._running: tuple[int, float] | None = None
        """Rows of the batch that was taken last and when, until it is known how long it took."""
        self._closed: WorkerError | None = None
        self.short_way: Callable[[], bool] = lambda: False
        """Asked when a request has come: whether the event loop takes its batch itself, so that nobody need wake."""

    @property
    def pass_s(self) -> float:
        """How long a pass of a whole batch takes. Any thread."""
        return self._times.of(self.policy.most)

    @property
    def waiting(self) -> int:
        """Items that wait for a pass."""
        return self._waiting

    @property
    def crowd(self) -> bool:
        """Whether a whole batch waits."""
        return self._waiting >= self.policy.most

    @property
    def closed(self) -> bool:
        """Whether everything is refused."""
        return self._closed is not None

    def tell(self, changed: threading.Condition) -> None:
        """Tell this one of changes, as other batchers of the same device do. Before anybody puts or takes."""
        self._changed = changed

    def put(self, request: Pending) -> None:
        """Queue every item of a request. Raises Overloaded, InvalidRequest for one that can never fit, NotReady."""
        count, line, shed = request.count, self._lines[request.priority], None
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if self.policy.refuses:
                self.admission.check(request, self._busy_s, self.policy.most, self._clock())
            if self._waiting + count > self._max_queue or line.waiting + count > line.most:
                shed = self.admission.make_room(request, self.policy.most)
                for one in shed:
                    self._waiting -= self._lines[LOW].drop(one)
            if request.deadline != math.inf:
                self._dated = True
            line.requests.append(request)
            line.waiting += count
            self._waiting += count
            if not self.short_way():
                self._changed.notify()
        for one in shed or ():
            one.fail(self.admission.shed(one, self.policy.most))

    def drop(self, request: Pending) -> None:
        """Forget what still waits of a request whose client no longer does."""
        with self._changed:
            if not request.dropped:
                self._waiting -= self._lines[request.priority].drop(request)

    def take(self, timeout_s: float) -> list[Item] | None:
        """The next batch once it is due; empty after `timeout_s` without one, None once closed."""
        now = self._clock()
        if self._running is not None:
            rows, since = self._running
            self.took(rows, now - since)
        give_up = now + timeout_s
        with self._changed:
            while self._closed is None:
                due_s = self.due_s(now)
                if due_s is not None and due_s <= 0:
                    return self._pop(now)
                if now >= give_up:
                    return []
                self._changed.wait(min(give_up - now, due_s if due_s is not None else timeout_s))
                now = self._clock()
            return None

    def took(self, rows: int, seconds: float) -> None:
        """Note how long a batch kept the device. Not called, the time until the next `take` is taken for it."""
        self._running = None
        self.policy.took(rows, seconds)

    def due(self) -> bool:
        """Whether `take` would give a batch at once."""
        if not self._waiting:
            return False  # without the lock: this is asked between segments
        with self._changed:
            due_s = self.due_s(self._clock())
            return due_s is not None and due_s <= 0

    def outlook(self) -> tuple[list[float], float]:
        """(when the answers of the next batch are wanted, seconds that it takes). Under the lock; some must wait."""
        deadlines: list[float] = []
        for line in self._lines:
            line.deadlines(self.policy.most - len(deadlines), self._wanted_s, deadlines)
        return deadlines, self._times.of(len(deadlines))

    def due_s(self, now: float) -> float | None:
        """Seconds until a batch may start; None while nobody waits. Under the lock."""
        if not self._waiting:
            return None
        policy = self.policy
        if not policy.waits or self._hurried or self._waiting >= policy.most:
            return 0.0
        return policy.due(self._oldest(), self._waiting, now) - now

    def _oldest(self) -> Pending:
        """Who has waited longest. There must be one."""
        high, low = self._lines[HIGH].head(), self._lines[LOW].head()
        if high is None or (low is not None and low.arrived < high.arrived):
            high = low
        assert high is not None
        return high

    def _pop(self, now: float) -> list[Item]:
        high, low = self._lines
        batch: list[Item] = []
        rows = self._rows(now) if self._dated else self.policy.most
        if not low.waiting:
            high.take(rows, batch)
        elif high.waiting:
            self._turn += rows
            of_low, self._turn = divmod(self._turn, LOW_ONE_IN)
            high.take(rows - min(of_low, low.waiting), batch)
        if low.waiting and len(batch) < rows:
            low.take(rows - len(batch), batch)
        self._waiting -= len(batch)
        self._running = (len(batch), now)
        crowd = self._waiting >= self.policy.most
        self._hurried = crowd or (self._hurried and self._waiting > 0)
        if crowd:
            self.pressure.note(Stage.SHORT_WAITS)
        return batch

    def _rows(self, now: float) -> int:
        """Rows of the next batch: no more than let the oldest of the first class be in time.

        Who can no longer be in time leaves it to others who can. While few wait, that is who would be late all alone;
        else who would be late in one batch with the others, because small batches would make all of them late. A timer
        answers those who left, at their deadline. Who is the only one is tried: nothing but passes corrects the times.
        """
        most, times, ahead = self.policy.most, self._times, 0
        for line in self._lines:
            while (head := line.head()) is not None and head.deadline != math.inf:
                others = ahead + line.waiting - (head.count - head.taken)
                alone = self._waiting == head.count - head.taken
                if alone or head.deadline >= now + times.of(min(most, others) if 2 * others >= most else 1):
                    break
                self._waiting -= line.drop(head)
            ahead += line.waiting
        rows, first = min(most, self._waiting), self._lines[HIGH].head() or self._oldest()
        while rows > 1 and now + times.of(rows) > first.deadline:
            rows -= 1
        return rows

    @property
    def _busy_s(self) -> float:
        """Seconds until the device is free, as far as is known."""
        running = self._running
        return max(0.0, running[1] + self._times.of(running[0]) - self._clock()) if running is not None else 0.0

    def close(self, error: WorkerError | None = None) -> list[Pending]:
        """Refuse everything from now on; the requests that were waiting, once each, for the caller to answer."""
        with self._changed:
            self._closed = error or NotReady("the worker is stopping")
            left = [request for line in self._lines for request in line.clear()]
            self._waiting = 0
            self._changed.notify()
        return left


def stack(items: Sequence[Item], specs: Sequence[TensorSpec]) -> dict[str, Array]:
    """One array [N, ...] for each input; shorter items are filled up to the longest with the input's pad value."""
    found: dict[str, Array] = {}
    for spec in specs:
        rows = [item.request.inputs[spec.name][item.index] for item in items]
        shape = rows[0].shape
        if all(row.shape == shape for row in rows):
            batch = aligned((len(rows), *shape), rows[0].dtype)
            for i, row in enumerate(rows):
                batch[i] = row
        else:
            longest = tuple(max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True))
            batch = aligned((len(rows), *longest), rows[0].dtype)
            batch.fill(spec.pad)
            for i, row in enumerate(rows):
                batch[i][tuple(map(slice, row.shape))] = row
        found[spec.name] = batch
    return found


def aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array without content, on the boundary that torch gives its own tensors.

    numpy's is 16 bytes, and the same product on another alignment may differ in its last bit.
    """
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
