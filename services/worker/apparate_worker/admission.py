"""Who may wait: so many of each class, the low one giving way, and under `deadline` only who will be in time."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from apparate_worker.errors import InvalidRequest, LowClassShed, Overloaded, QueueFull, WouldBeLate
from apparate_worker.passtimes import PassTimes
from apparate_worker.pressure import Pressure, Stage

if TYPE_CHECKING:
    from apparate_worker.line import Line
    from apparate_worker.pending import Pending

HIGH, LOW = 0, 1
CLASSES = ("high", "low")
LOW_ONE_IN = 16  # rows that start while both classes wait: the low one moves on, and costs the high one a sixteenth


def class_of(priority: int) -> int:
    """The class of a priority as clients give it: 1 is high, everything above is low."""
    return HIGH if priority <= 1 else LOW


class Admission:
    """Asked for a request that does not simply fit, or may come too late. Under the batcher's lock."""

    def __init__(self, lines: tuple[Line, Line], max_queue: int, times: PassTimes, pressure: Pressure) -> None:
        self._lines, self._max_queue, self._times, self._pressure = lines, max_queue, times, pressure
        self.refused: Counter[tuple[str, str]] = Counter()
        """Requests by class and reason."""

    def check(self, request: Pending, busy_s: float, most: int, now: float) -> None:
        """Raise WouldBeLate for one whose answer would come after its deadline.

        busy_s: until the device is free. Who meets an idle device is always taken: only passes correct the times.
        """
        if request.deadline == math.inf:
            return
        high, low = self._lines
        ahead = high.waiting + min(low.waiting, high.waiting // LOW_ONE_IN if request.priority == HIGH else low.waiting)
        if not (ahead or busy_s):
            return
        items = ahead + request.count
        if ahead >= most:
            items += -items % most  # who comes later fills its batch
        takes_s, left_s = busy_s + self._times.of_all(items, most), request.deadline - now
        if takes_s > left_s:
            why = f"an answer would take {takes_s * 1e3:.0f} ms, the request allows {max(left_s, 0) * 1e3:.0f} ms more"
            raise self._noted(request, WouldBeLate(why, takes_s - left_s))

    def make_room(self, request: Pending, most: int) -> list[Pending]:
        """Requests of the low class that must give up their places for this one. Raises Overloaded, InvalidRequest."""
        line, name = self._lines[request.priority], CLASSES[request.priority]
        if request.count > line.most:
            of = "" if request.priority == HIGH else f" of class {name}"
            raise InvalidRequest(f"the request has {request.count} items, the queue holds {line.most}{of}")
        high, low = self._lines
        waiting = high.waiting + low.waiting
        short = waiting + request.count - self._max_queue
        why = f"{waiting} requests wait, {self._max_queue} may wait"
        if request.priority == LOW:
            if short <= 0:
                why = f"{low.waiting} requests of class {name} wait, {low.most} may wait"
            raise self._noted(request, LowClassShed(why, self._times.of_all(waiting, most)))
        shed = low.newest(short)
        if not shed:
            raise self._noted(request, QueueFull(why, self._times.of_all(waiting, most)))
        return shed

    def shed(self, request: Pending, most: int) -> Overloaded:
        """What one hears that gave up its place."""
        wait_s = self._times.of_all(sum(line.waiting for line in self._lines), most)
        why = "the queue is full, and the request gave up its place for one of class high"
        return self._noted(request, LowClassShed(why, wait_s))

    def _noted(self, request: Pending, error: Overloaded) -> Overloaded:
        self.refused[CLASSES[request.priority], error.reason] += 1
        self._pressure.note(Stage.SHED_LOW if request.priority == LOW else Stage.REFUSE)
        return error
