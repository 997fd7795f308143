"""Requests wait here and leave as batches: each class in order of arrival, the low one behind the high one.

The event loop puts, the device thread pops: one hop between a request's arrival and its pass, and none when the device
is idle. Whoever is cancelled or out of time while waiting is dropped before the pass. When a batch is due, and how
large it is, is the policy's business (`policies.py`); who may wait is that of `admission.py`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from apparate_worker.admission import HIGH, LOW, LOW_ONE_IN, Admission
from apparate_worker.errors import NotReady, WorkerError
from apparate_worker.line import Line
from apparate_worker.passtimes import PassTimes
from apparate_worker.pending import Item, Pending
from apparate_worker.policies import Policy, SizeAge
from apparate_worker.pressure import Pressure, Stage

LOW_SHARE = 0.5  # of the queue that the low class may fill
WANTED_S = 1.0  # where nobody has said: when several models want the device, one with an objective goes first
UNKNOWN_S = 1e-3  # of a pass per row, where nobody has measured


class Batcher:
    """The queue. `put` and `drop` from the event loop; `pop` and `took` from whoever has the device, by its scheduler.

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
        """Rows of the batch that was popped last and when, until it is known how long it took."""
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
        """Tell this one of changes, as other batchers of the same device do. Before anybody puts or pops."""
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

    def took(self, rows: int, seconds: float) -> None:
        """Note how long the batch that was popped last kept the device."""
        self._running = None
        self.policy.took(rows, seconds)

    def due(self) -> bool:
        """Whether a batch may start at once."""
        if not self._waiting:
            return False  # without the lock: this is asked between segments
        with self._changed:
            due_s = self.due_s(self._clock())
            return due_s is not None and due_s <= 0

    def outlook(self) -> tuple[float, list[float], float]:
        """(arrival of the oldest, when the answers of the next batch are wanted, seconds that it takes).

        Under the lock; some must wait.
        """
        deadlines: list[float] = []
        for line in self._lines:
            line.deadlines(self.policy.most - len(deadlines), self._wanted_s, deadlines)
        return self._oldest().arrived, deadlines, self._times.of(len(deadlines))

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

    def pop(self, now: float) -> list[Item]:
        """The next batch, due or not. Under the lock; some must wait."""
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
