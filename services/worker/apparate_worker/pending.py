"""Requests that wait for their answers: their items, one by one, and stacked as the input of a pass."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.contract.resource import TensorSpec
from apparate.feedback import FINAL
from apparate.plan import newest
from apparate_worker.admission import HIGH
from apparate_worker.errors import WorkerError
from apparate_worker.release import Limits

Array = npt.NDArray[Any]
ALIGNMENT = 64  # bytes


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
        "remember",
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
        self.remember: Callable[[int, Array], None] | None = None
        """Takes the model's own scores of each item, whenever they come."""
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
