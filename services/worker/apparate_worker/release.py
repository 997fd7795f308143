"""Which requests of a pass leave at a ramp: the exit rule of `apparate.adaptation.exits`, one ramp at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from apparate.feedback import FINAL

FEW = 16  # class scores that a loop goes through faster than numpy is called, when its code is not in the cache


class Limits(NamedTuple):
    """What one request lets the plan do to it."""

    last_ramp: int
    """Deepest ramp, by catalog index, that it may leave at; -1: none."""
    most_error: float
    """Highest error score that it may leave with."""


NO_LIMITS = Limits(2**31 - 1, 1.0)
FREE: Mapping[int, Limits] = {}


class Release:
    """The requests of one pass that still wait for their answer.

    Asked at every active ramp in order, and at last for the rest, it says the same as `exit_ramps` over the whole
    matrix: strictly below, in float32, and a NaN error never exits. Lists, not arrays: a pass has a few requests, and
    between two segments numpy's calls cost more than the loop.

    limits: of the rows whose requests have some; what their ramps say is reported all the same.
    """

    def __init__(self, requests: int, limits: Mapping[int, Limits] = FREE) -> None:
        self._waiting = dict.fromkeys(range(requests))
        self._limits = limits
        self.exits = [FINAL] * requests
        """[N] catalog index of the ramp each request left at."""
        self.order: list[int] = []
        """Rows in the order they were released."""

    def at(
        self, ramp: int, errors: npt.NDArray[np.float32], threshold: float, rows: Sequence[int] | None = None
    ) -> list[int]:
        """Rows that leave at `ramp` and have not left before. threshold exactly a float32.

        errors: of `rows`, by default of all rows in order.
        """
        if threshold <= 0 or not self._waiting:
            return []
        scores = errors.tolist()  # float32 values, exactly
        asked = range(len(scores)) if rows is None else rows
        rows = [row for row, score in zip(asked, scores, strict=True) if score < threshold and row in self._waiting]
        if self._limits and rows:
            score_of = dict(zip(asked, scores, strict=True))
            rows = [row for row in rows if self._lets(row, ramp, score_of[row])]
        for row in rows:
            del self._waiting[row]
            self.exits[row] = ramp
        self.order += rows
        return rows

    def _lets(self, row: int, ramp: int, score: float) -> bool:
        limits = self._limits.get(row, NO_LIMITS)
        return ramp <= limits.last_ramp and score <= limits.most_error

    @property
    def counting(self) -> list[int]:
        """Rows whose answers the guard hears of, in order of release. One that was allowed to do less than the plan,
        and then ran to the end, earns no credit for the others: the accuracy budget holds among those as well."""
        if not self._limits:
            return self.order
        return [row for row in self.order if self.exits[row] != FINAL or row not in self._limits]

    def waits(self, row: int) -> bool:
        """Whether the request still has no answer."""
        return row in self._waiting

    def rest(self, among: Sequence[int] | None = None) -> list[int]:
        """Rows that no ramp let go, by default of all; they take the model's own answer."""
        rows = list(self._waiting) if among is None else [row for row in among if row in self._waiting]
        for row in rows:
            del self._waiting[row]
        self.order += rows
        return rows


def scores(logits: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """(error score [N] float32, label [N] int32) of class scores [N, C].

    The error is 1 - max softmax; with the largest score taken out, that softmax is 1 / sum(exp). NaN where a score is
    not a number.
    """
    if logits.size <= FEW:
        pairs = [_score(row) for row in logits.tolist()]
        return np.array([error for error, _ in pairs], np.float32), np.array([label for _, label in pairs], np.int32)
    top = logits.max(axis=1, keepdims=True)
    errors = 1.0 - 1.0 / np.exp(logits - top).sum(axis=1)
    return errors.astype(np.float32, copy=False), logits.argmax(axis=1).astype(np.int32)


def error_scores(logits: npt.NDArray[Any]) -> list[float]:
    """The error scores alone, [N]. Any thread."""
    if logits.size <= FEW:
        return [_score(row)[0] for row in logits.tolist()]
    with np.errstate(all="ignore"):  # a setting of the thread; here it need not be the device's
        return scores(logits)[0].tolist()  # type: ignore[no-any-return]


def _score(row: list[float]) -> tuple[float, int]:
    if len(row) == 2:
        less = row[1] - row[0]
        return (1.0 - 1.0 / (1.0 + math.exp(-abs(less))) if abs(less) < math.inf else math.nan), int(less > 0)
    top = max(row)
    total = sum(math.exp(score - top) for score in row)  # NaN for any NaN, and for an infinite top
    return 1.0 - 1.0 / total, row.index(top)
