"""Requests wait here and leave as batches: by size, by age, in order of arrival.

The event loop puts, the device thread takes: one hop between a request's arrival and its pass, and none when the device
is idle. Whoever is cancelled or out of time while waiting is dropped before the pass.
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
from apparate_worker.errors import InvalidRequest, NotReady, QueueFull, WorkerError
from apparate_worker.release import Limits

Array = npt.NDArray[Any]
ALIGNMENT = 64  # bytes
SWEEP_ABOVE = 64  # dropped items that may stay in the queue before it is rebuilt; they hold their tensors


class Pending:
    """One request on its way: its items, and the answers that have come so far.

    `future` belongs to the event loop and becomes ready when every item has its answer.
    """

    __slots__ = (
        "arrived",
        "count",
        "dropped",
        "exits",
        "future",
        "inputs",
        "labels",
        "left",
        "limits",
        "logits",
        "revision",
        "taken",
    )

    def __init__(self, inputs: Mapping[str, Array], count: int, future: asyncio.Future[None], arrived: float) -> None:
        self.inputs, self.count, self.future, self.arrived = inputs, count, future, arrived
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


class Batcher:
    """The queue. `put` and `drop` from the event loop, `take` from the device thread."""

    def __init__(
        self, *, max_batch: int, max_delay_s: float, max_queue: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_batch, self._max_delay_s, self._max_queue, self._clock = max_batch, max_delay_s, max_queue, clock
        self._changed = threading.Condition()
        self._items: deque[Item] = deque()
        self._waiting = 0
        self._closed: WorkerError | None = None

    @property
    def waiting(self) -> int:
        """Items that wait for a pass."""
        return self._waiting

    def put(self, request: Pending) -> None:
        """Queue every item of a request. Raises QueueFull, InvalidRequest for one that can never fit, NotReady."""
        if request.count > self._max_queue:
            raise InvalidRequest(f"the request has {request.count} items, the queue holds {self._max_queue}")
        with self._changed:
            if self._closed is not None:
                raise self._closed
            if self._waiting + request.count > self._max_queue:
                raise QueueFull(f"{self._waiting} requests wait, {self._max_queue} may wait; try again later")
            self._items.extend(Item(request, i) for i in range(request.count))
            self._waiting += request.count
            self._changed.notify()

    def drop(self, request: Pending) -> None:
        """Forget what still waits of a request whose client no longer does."""
        with self._changed:
            if request.dropped:
                return
            request.dropped = True
            self._waiting -= request.count - request.taken
            if len(self._items) - self._waiting > SWEEP_ABOVE + self._waiting:
                self._items = deque(item for item in self._items if not item.request.dropped)

    def take(self, timeout_s: float) -> list[Item] | None:
        """The next batch, oldest first, once it is due; empty after `timeout_s` without one, None once closed."""
        give_up = self._clock() + timeout_s
        with self._changed:
            while self._closed is None:
                now = self._clock()
                due_s = self._due_s(now)
                if due_s is not None and due_s <= 0:
                    return self._pop()
                if now >= give_up:
                    return []
                self._changed.wait(min(give_up - now, due_s if due_s is not None else timeout_s))
            return None

    def due(self) -> bool:
        """Whether `take` would give a batch at once."""
        if not self._waiting:
            return False  # without the lock: this is asked between segments
        with self._changed:
            due_s = self._due_s(self._clock())
            return due_s is not None and due_s <= 0

    def _due_s(self, now: float) -> float | None:
        """Seconds until a batch may start; None while nobody waits."""
        if not self._waiting:
            return None
        if self._waiting >= self._max_batch:
            return 0.0
        while self._items[0].request.dropped:
            self._items.popleft()
        if self._max_delay_s <= 0:
            return 0.0
        return self._items[0].request.arrived + self._max_delay_s - now

    def _pop(self) -> list[Item]:
        batch: list[Item] = []
        while self._items and len(batch) < self._max_batch:
            item = self._items.popleft()
            if not item.request.dropped:
                item.request.taken += 1
                batch.append(item)
        self._waiting -= len(batch)
        return batch

    def close(self, error: WorkerError | None = None) -> list[Pending]:
        """Refuse everything from now on; the requests that were waiting, once each, for the caller to answer."""
        with self._changed:
            self._closed = error or NotReady("the worker is stopping")
            left = list({id(item.request): item.request for item in self._items if not item.request.dropped}.values())
            self._items.clear()
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
