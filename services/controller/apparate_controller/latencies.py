"""How long the newest answers took, and when the plain model would have given them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.catalog import RampCatalog
from apparate.feedback import FINAL, FeedbackBatch
from apparate.plan import Plan

KEPT = 4096  # answers
POINTS = 100  # of a distribution


@dataclass
class Latencies:
    """A ring of the newest answers. Owned by the model's thread."""

    released_ms: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros(KEPT, np.float32))
    """From arrival at the worker to the answer."""
    exits: npt.NDArray[np.int32] = field(default_factory=lambda: np.full(KEPT, FINAL, np.int32))
    batch: npt.NDArray[np.int32] = field(default_factory=lambda: np.ones(KEPT, np.int32))
    added: int = 0

    def add(self, batch: FeedbackBatch) -> None:
        """Take the answers of one batch, if their times were measured."""
        newest = batch.released_ms[-KEPT:]
        if not len(newest):
            return
        at = (self.added + np.arange(len(newest))) % KEPT
        self.released_ms[at] = newest
        self.exits[at] = batch.exits[-KEPT:]
        self.batch[at] = batch.padded_size
        self.added += len(newest)

    def distribution(self, catalog: RampCatalog, plan: Plan) -> dict[str, Any]:
        """Quantiles of both times in ms; for the plain model each early answer comes later by what its ramp spared."""
        known = min(self.added, KEPT)
        if not known:
            return {"samples": 0, "quantiles": [], "releasedMs": [], "plainMs": []}
        released, exits, batch = self.released_ms[:known], self.exits[:known], self.batch[:known]
        rows, active = catalog.rows(batch), plan.active
        column = np.full(catalog.ramps + 1, len(active))  # FINAL, the last one, leaves nowhere
        column[list(active)] = np.arange(len(active))
        exits = np.where(exits < catalog.ramps, exits, FINAL)
        taken = catalog.exit_ms(active)[rows, column[exits]]
        elsewhere = (exits >= 0) & (column[exits] == len(active))  # at a ramp of an earlier plan
        taken[elsewhere] = catalog.reach_ms[rows[elsewhere], exits[elsewhere]]
        plain = np.maximum(released + catalog.full_ms[rows] - taken, 0.0)
        shares = np.linspace(0.0, 1.0, POINTS + 1)
        return {
            "samples": known,
            "quantiles": shares.round(4).tolist(),
            "releasedMs": np.quantile(released, shares).round(4).tolist(),
            "plainMs": np.quantile(plain, shares).round(4).tolist(),
        }
