"""Which requests of a pass leave at a ramp: the exit rule of `apparate.adaptation.exits`, one ramp at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.feedback import FINAL

Rows = npt.NDArray[np.intp]
NO_ROWS: Rows = np.zeros(0, np.intp)


class Release:
    """The requests of one pass that still wait for their answer.

    Asked at every active ramp in order, and at last for the rest, it says the same as `exit_ramps` over the whole
    matrix: strictly below, in float32, and a NaN error never exits.
    """

    def __init__(self, requests: int) -> None:
        self.waiting = np.ones(requests, bool)
        self.exits = np.full(requests, FINAL, np.int32)
        """[N] catalog index of the ramp each request left at."""
        self.order: list[Rows] = []
        """Rows in the order they were released."""

    def at(self, ramp: int, errors: npt.NDArray[np.float32], threshold: np.float32) -> Rows:
        """Rows that leave at `ramp` and have not left before. errors [N]."""
        if threshold <= 0:
            return NO_ROWS
        lets_go = errors < threshold
        lets_go &= self.waiting
        rows: Rows = np.flatnonzero(lets_go)
        if len(rows):
            self.waiting[rows] = False
            self.exits[rows] = ramp
            self.order.append(rows)
        return rows

    def rest(self) -> Rows:
        """Rows that no ramp let go; they take the model's own answer."""
        rows: Rows = np.flatnonzero(self.waiting)
        self.waiting[rows] = False
        self.order.append(rows)
        return rows

    def released_order(self) -> Rows:
        """All rows that were released, in order."""
        return np.concatenate(self.order) if self.order else NO_ROWS


def scores(logits: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """(error score [N] float32, label [N] int32) of class scores [N, C].

    The error is 1 - max softmax; with the largest score taken out, that softmax is 1 / sum(exp).
    """
    top = logits.max(axis=1, keepdims=True)
    errors = 1.0 - 1.0 / np.exp(logits - top).sum(axis=1)
    return errors.astype(np.float32, copy=False), logits.argmax(axis=1).astype(np.int32)
