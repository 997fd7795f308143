"""What ramps said against what the model said: batches as workers send them, and the window that tuning reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Bools = npt.NDArray[np.bool_]

EVERY = slice(None)
FINAL = -1  # exit index of a request whose answer was the model's own
LEAST_SHARE = 0.001  # of batches that are run to the end: a record that stands for more would drown all others


class InvalidFeedback(ValueError):
    """Feedback whose parts do not agree; the message names the field, its shape and the expected one."""


@dataclass(frozen=True, eq=False)
class FeedbackBatch:
    """Feedback of one served batch of N requests over R reporting ramps.

    errors         [N, R]  error score of every reporting ramp, float32, also past the exit
    labels         [N, R]  the ramp's own answer
    final_labels   [N]     the model's answer
    exits          [N]     catalog index of the ramp the answer left at, FINAL (-1) for the model's own
    ramps          R catalog indices, shallow to deep;  shadow[i]: ramp i was switched off and evaluated off the path
    """

    model: str
    worker: str
    epoch: int
    """Start of the worker process, in milliseconds since 1970: tells a restarted worker from its predecessor."""
    seq: int
    """Rises by one with each batch of a worker's epoch, so a consumer can drop repeats and count gaps."""
    revision: int
    """Plan revision the batch ran under."""
    padded_size: int
    ramps: tuple[int, ...]
    errors: Floats
    labels: Ints
    final_labels: Ints
    exits: Ints
    shadow: tuple[bool, ...] = ()
    catalog: str = ""
    started_at: float = 0.0
    """Wall time of the start of the pass, in seconds; for people and traces, never for intervals."""
    service_ms: float = 0.0
    released_ms: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    """[N] time from arrival at the worker to release of the answer; empty when not measured."""
    guarded: bool = False
    """The worker's guard had closed the ramps, whatever the plan said."""
    share: float = 1.0
    """Probability with which the batch was drawn to be run to the end; it stands for 1 / share batches."""
    trace: str = ""
    """W3C traceparent of one of its requests; empty when none is traced."""

    def __post_init__(self) -> None:
        if not self.shadow:
            object.__setattr__(self, "shadow", (False,) * len(self.ramps))
        n, r = len(self.final_labels), len(self.ramps)
        for name, shape in (("errors", (n, r)), ("labels", (n, r)), ("exits", (n,))):
            found = getattr(self, name).shape
            if found != shape:
                raise InvalidFeedback(f"{name} has shape {list(found)}, expected {list(shape)}")
        if len(self.shadow) != r:
            raise InvalidFeedback(f"shadow has {len(self.shadow)} flags, there are {r} ramps")
        if any(a >= b for a, b in pairwise(self.ramps)) or (r and self.ramps[0] < 0):
            raise InvalidFeedback(f"ramps are {list(self.ramps)}, must be rising catalog indices")
        if len(self.released_ms) not in (0, n):
            raise InvalidFeedback(f"released_ms has {len(self.released_ms)} values for {n} requests")
        if self.padded_size < max(n, 1):
            raise InvalidFeedback(f"padded size is {self.padded_size}, the batch has {n} requests")
        if not LEAST_SHARE <= self.share <= 1.0:
            raise InvalidFeedback(f"share is {self.share}, allowed {LEAST_SHARE}..1")

    def __len__(self) -> int:
        return len(self.final_labels)

    @cached_property
    def released_wrong(self) -> Bools:
        """[N] answers that left early and disagree with the model's own."""
        if not self.ramps or not (self.exits != FINAL).any():
            return np.zeros(len(self), bool)
        left_here = self.exits[:, None] == np.array(self.ramps)
        found: Bools = (left_here & (self.labels != self.final_labels[:, None])).any(axis=1)
        return found


@dataclass(frozen=True, eq=False)
class Records:
    """A table of feedback that tuning reads: N requests in order of service over R ramps, every cell known.

    errors [N, R] float32 · agree [N, R] whether the ramp's answer is the model's · batch [N] padded batch size
    weight [N] requests that each stands for, itself included; None: 1 each
    """

    errors: npt.NDArray[np.float32]
    agree: Bools
    batch: Ints
    weight: Floats | None = None

    def __post_init__(self) -> None:
        if self.errors.ndim != 2 or self.agree.shape != self.errors.shape or self.batch.shape != (len(self.errors),):
            shapes = f"errors {list(self.errors.shape)}, agree {list(self.agree.shape)}, batch {list(self.batch.shape)}"
            raise InvalidFeedback(f"parts do not agree: {shapes}")
        if self.weight is not None and self.weight.shape != self.batch.shape:
            raise InvalidFeedback(
                f"parts do not agree: weight {list(self.weight.shape)}, batch {list(self.batch.shape)}"
            )

    def __len__(self) -> int:
        return len(self.errors)

    @property
    def ramps(self) -> int:
        """How many ramps there are columns for."""
        return int(self.errors.shape[1])

    def take(self, rows: Any) -> Records:
        """The records of some rows, by slice, index or mask."""
        weight = self.weight[rows] if self.weight is not None else None
        return Records(self.errors[rows], self.agree[rows], self.batch[rows], weight)

    def columns(self, chosen: Sequence[int]) -> Records:
        """The same records with only the chosen ramps."""
        return Records(self.errors[:, list(chosen)], self.agree[:, list(chosen)], self.batch, self.weight)


class FeedbackWindow:
    """The newest `size` records of one model over all ramps of its catalog, a ring buffer.

    What a ramp says does not depend on which others are active, so a record serves every ramp set whose ramps all
    reported on it, actively or as shadows; `over` gives those. Records of another catalog must not be added.
    """

    def __init__(self, size: int, ramps: int) -> None:
        if size < 1:
            raise InvalidFeedback(f"window size is {size}, must be positive")
        self.size, self.ramps = size, ramps
        self._errors = np.full((size, ramps), np.nan, np.float32)
        self._agree = np.zeros((size, ramps), bool)
        self._labels = np.zeros((size, ramps), np.int32)
        self._shadow = np.zeros((size, ramps), bool)
        self._final = np.zeros(size, np.int32)
        self._batch = np.ones(size, np.int32)
        self._wrong = np.zeros(size, bool)
        self._exited = np.zeros(size, bool)
        self._weight = np.ones(size)
        self._last_layout: tuple[object, slice | list[int], Bools] | None = None
        self.added = 0
        """Records ever added."""

    def __len__(self) -> int:
        return min(self.added, self.size)

    def add(self, batch: FeedbackBatch) -> None:
        """Append a batch, pushing out the oldest records. Raises InvalidFeedback for a ramp beyond the catalog."""
        if batch.ramps and batch.ramps[-1] >= self.ramps:
            raise InvalidFeedback(f"ramp {batch.ramps[-1]} is not in a catalog of {self.ramps} ramps")
        count = min(len(batch), self.size)
        start, skipped = (self.added + len(batch) - count) % self.size, len(batch) - count
        before_end = min(count, self.size - start)
        self._write(batch, slice(start, start + before_end), slice(skipped, skipped + before_end))
        if before_end < count:  # around the end of the ring
            self._write(batch, slice(0, count - before_end), slice(skipped + before_end, None))
        self.added += len(batch)

    def _write(self, batch: FeedbackBatch, rows: slice, part: slice) -> None:
        """Put some of a batch's records into rows. Slices, not indices: this is what limits the records in a second."""
        columns, shadow = self._layout(batch)
        if columns != EVERY:
            self._errors[rows] = np.nan
        if batch.ramps:
            labels = batch.labels[part]
            self._errors[rows, columns] = batch.errors[part]
            self._agree[rows, columns] = labels == batch.final_labels[part, None]
            self._labels[rows, columns] = labels
            self._shadow[rows, columns] = shadow
        self._final[rows] = batch.final_labels[part]
        self._batch[rows] = batch.padded_size
        self._wrong[rows] = batch.released_wrong[part]
        self._exited[rows] = batch.exits[part] != FINAL
        self._weight[rows] = 1.0 / batch.share

    def _layout(self, batch: FeedbackBatch) -> tuple[slice | list[int], Bools]:
        """Where the columns of a batch go and which are shadows: that of the last batch, when it is the same."""
        known = self._last_layout
        if known is None or known[0] != (batch.ramps, batch.shadow):
            ramps = batch.ramps
            together = len(ramps) > 0 and ramps[-1] - ramps[0] == len(ramps) - 1
            columns = slice(ramps[0], ramps[-1] + 1) if together else list(ramps)
            whole = EVERY if len(ramps) == self.ramps else columns
            known = self._last_layout = (ramps, batch.shadow), whole, np.array(batch.shadow, bool)
        return known[1], known[2]

    def _order(self, newest: int | None) -> Ints:
        count = len(self) if newest is None else min(newest, len(self))
        order: Ints = np.arange(self.added - count, self.added) % self.size
        return order

    def over(self, ramps: Sequence[int], newest: int | None = None) -> Records:
        """Records, oldest first, on which all of `ramps` reported; columns in the order given.

        newest: look at no more than this many of the newest records.
        """
        order, chosen = self._order(newest), list(ramps)
        errors = self._errors[order[:, None], chosen] if chosen else np.zeros((len(order), 0), np.float32)
        known = ~np.isnan(errors).any(axis=1)
        order, errors = order[known], errors[known]
        agree = self._agree[order[:, None], chosen] if chosen else np.zeros((len(order), 0), bool)
        return Records(errors, agree, self._batch[order], self._weights(order))

    def _weights(self, order: Ints) -> Floats | None:
        weights = self._weight[order]
        return weights if (weights != 1.0).any() else None

    def recording(self, ramps: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
        """The arrays of the recording format, oldest first: every record on which all of `ramps` reported.

        err [N, R] · top1 [N, R] · final [N] · batch [N] · shadow [N, R] whether the ramp was switched off then.
        """
        order, chosen = self._order(None), list(ramps)
        known = ~np.isnan(self._errors[order[:, None], chosen]).any(axis=1) if chosen else np.ones(len(order), bool)
        order = order[known]
        cells = (order[:, None], chosen)
        return {
            "err": self._errors[cells],
            "top1": self._labels[cells],
            "final": self._final[order],
            "batch": self._batch[order],
            "shadow": self._shadow[cells],
        }

    def released(self, newest: int | None = None) -> tuple[Bools, Bools]:
        """([N] left early, [N] left early with another answer than the model's), oldest first."""
        order = self._order(newest)
        return self._exited[order], self._wrong[order]

    def weights(self, newest: int | None = None) -> Floats:
        """[N] requests that each record stands for, oldest first: 1 where every batch is run to the end."""
        return self._weight[self._order(newest)]
