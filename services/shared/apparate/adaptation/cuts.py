"""Exit thresholds as cut positions in the sorted errors of a window, which is where tuners search.

A threshold matters only by which records it lets go, so a ramp has one distinguishable threshold for each distinct
error in the window. A cut of c lets the c surest records go; only cuts between different errors exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.adaptation.exits import Floats, Ints, profile_rows
from apparate.catalog import RampCatalog
from apparate.feedback import Records

GRID = 10_000  # thresholds are whole ten-thousandths where the data leaves room for it: short to print and to compare
TICKS = float(2**26)  # the longest pass in whole ticks: sums over 8,192 records are exact at any price, in any order
ROUNDING_SLACK = 1e-9  # a budget of 0.07 on 100 records allows 7 disagreements, whatever 0.07 * 100 is in binary


def allowed_wrong(max_loss: float, n: int) -> int:
    """Most disagreements among `n` answers that a loss of `max_loss` allows, inclusive."""
    return int(np.floor(max_loss * n + ROUNDING_SLACK))


def thresholds_between(below: npt.ArrayLike, above: npt.ArrayLike) -> Floats:
    """Thresholds that let errors of `below` go and none of `above`, as low as they can be.

    The smallest whole ten-thousandth that does it, else the next float32 after `below`. Where both errors are equal
    no threshold parts them, and the result keeps both. Works elementwise; all values and results within 0..1.
    """
    below, above = np.asarray(below, np.float32), np.asarray(above, np.float32)
    steps = np.floor(below.astype(np.float64) * GRID)
    steps += (steps / GRID).astype(np.float32) <= below  # again in float32: that is how the exit rule compares
    steps += (steps / GRID).astype(np.float32) <= below
    on_grid = np.minimum(steps, GRID) / GRID
    fits = (on_grid.astype(np.float32) > below) & (on_grid.astype(np.float32) <= above)
    next_up = np.minimum(np.nextafter(below, np.float32(2)), above).astype(np.float64)
    return np.where(fits, on_grid, next_up)


@dataclass(frozen=True, eq=False)
class RankedErrors:
    """The errors of a window sorted for each ramp, once, so that searches only move cut positions.

    order   [R, N]  records from the surest to the least sure
    rank    [R, N]  position of each record in `order`; a ramp with cut c lets go the records with rank < c
    errors  [R, N]  sorted errors
    no_cut  [R, N]  0 where a cut after that position exists, -inf where it would part equal errors or an error of 1
    """

    order: Ints
    rank: Ints
    errors: npt.NDArray[np.float32]
    no_cut: Floats

    @classmethod
    def of(cls, records: Records) -> RankedErrors:
        """Sort every ramp's errors. A NaN error counts as 1, which no threshold lets go."""
        errors = np.nan_to_num(np.ascontiguousarray(records.errors.T), nan=1.0)
        order = np.argsort(errors, axis=1)
        rank = np.empty(order.shape, np.int32)
        np.put_along_axis(rank, order, np.arange(errors.shape[1], dtype=np.int32)[None, :], axis=1)
        ordered = np.take_along_axis(errors, order, axis=1)
        after = np.concatenate([ordered[:, 1:], np.full((len(ordered), 1), np.inf, np.float32)], axis=1)
        return cls(order, rank, ordered, np.where((ordered < after) & (ordered < 1.0), 0.0, -np.inf))

    def columns(self, chosen: Sequence[int]) -> RankedErrors:
        """The same window with only the chosen ramps."""
        rows = list(chosen)
        return RankedErrors(self.order[rows], self.rank[rows], self.errors[rows], self.no_cut[rows])

    def thresholds(self, cuts: Ints) -> Floats:
        """[R] lowest thresholds that let go the `cuts[r]` surest records of each ramp, or fewer where errors tie."""
        n = self.errors.shape[1]
        found = np.zeros(len(cuts))
        for r, cut in enumerate(cuts):
            if cut > 0 and n:
                above = self.errors[r, cut] if cut < n else np.float32(1.0)
                found[r] = float(thresholds_between(self.errors[r, cut - 1], above))
        return found


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What each record gets at each exit, in one number: time in ticks (real part) + 1j where the answer is wrong.

    values [k+1, N]; the last row is leaving nowhere. Both parts are whole numbers, so that sums are exact and do not
    depend on the order of records, and one cumulative sum does for time and disagreements together.
    """

    values: npt.NDArray[np.complex128]

    @classmethod
    def of(cls, records: Records, catalog: RampCatalog, active: Sequence[int]) -> Outcomes:
        """Outcomes of leaving at each active ramp, at the latencies of each record's own batch size."""
        exit_ms = catalog.exit_ms(active)
        ticks = np.rint(exit_ms * (TICKS / exit_ms.max()))
        values = np.zeros((exit_ms.shape[1], len(records)), np.complex128)
        values.real = ticks.T[:, profile_rows(records, catalog)]
        values.imag[:-1] = ~records.agree.T
        return cls(values)

    def total(self, leaves: npt.NDArray[np.bool_]) -> tuple[float, int]:
        """(ticks of all records, disagreements) when record s leaves at the first ramp j with leaves[j, s]."""
        exits = np.vstack([leaves, np.ones((1, leaves.shape[1]), bool)]).argmax(axis=0)
        summed: Any = self.values[exits, np.arange(leaves.shape[1])].sum()
        return float(summed.real), round(summed.imag)
