"""What the profile says of passes of any size: what is left of one at a ramp, and when the plain model would answer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from apparate.catalog import RampCatalog
from apparate.feedback import FINAL

Floats = npt.NDArray[np.float64]


def remaining_table(catalog: RampCatalog, rows: int) -> Floats:
    """[rows + 1, R] ms from each ramp's site to the end of the model, by rows."""
    return by_rows(catalog, catalog.full_ms[:, None] - catalog.reach_ms, rows)


def by_rows(catalog: RampCatalog, profiled: npt.NDArray[np.floating], rows: int) -> Floats:
    """[rows + 1, R] of a table [B, R] by batch size: between and beyond the profiled sizes by straight lines."""
    sizes = np.array(catalog.batch_sizes, float)
    wanted = np.arange(rows + 1, dtype=float)
    if not profiled.shape[1]:
        return np.zeros((rows + 1, 0))
    table = np.stack([np.interp(wanted, sizes, column) for column in profiled.T], axis=1)
    beyond = np.maximum(wanted - sizes[-1], 0.0)[:, None] / sizes[-1]
    return np.asarray(table + beyond * profiled[-1])


class PlainTimes:
    """How much later than an answer the plain model's would have come. For one thread."""

    def __init__(self, catalog: RampCatalog, max_batch: int) -> None:
        self._left_s = remaining_table(catalog, max_batch) / 1e3
        self._paid_s = by_rows(catalog, catalog.overhead_ms, max_batch) / 1e3
        self._active: tuple[int, ...] = ()
        self._known: dict[int, Mapping[int, float]] = {}

    def later_s(self, active: tuple[int, ...], rows: int) -> Mapping[int, float]:
        """By the ramp that an answer left at (or FINAL), of a pass of so many rows with these ramps.

        What was left of the pass at that ramp, less what the ramps up to and with it have cost; negative for the
        model's own answers, which came later for the ramps that they passed.
        """
        if active != self._active:
            self._active = active
            self._known.clear()
        if rows not in self._known:
            paid = np.cumsum(self._paid_s[rows, list(active)]).tolist()
            found = {ramp: float(self._left_s[rows, ramp]) - paid[i] for i, ramp in enumerate(active)}
            self._known[rows] = found | {FINAL: -paid[-1] if paid else 0.0}
        return self._known[rows]
