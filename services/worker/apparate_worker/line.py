"""The queue of one class of requests."""

from __future__ import annotations

from collections import deque

from apparate_worker.pending import Item, Pending

SWEEP_ABOVE = 64  # dropped requests that may stay in a queue before it is rebuilt; they hold their tensors


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
