"""Coordinate sweeps: the search for thresholds behind the certified tuner, near the optimum and fast.

With all other ramps fixed, the best cut of one ramp is found exactly: go through the records that reach it from the
surest on, and add up the time gained and the disagreements added by letting each go here and not where it would leave
otherwise. Sweeps repeat that ramp by ramp until nothing moves, at a falling price for a disagreement; then what is
left of the budget is filled by single jumps, and the result polished by pulling ramps back and filling again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apparate.adaptation.cuts import TICKS, Outcomes, RankedErrors, allowed_wrong
from apparate.adaptation.exits import Floats, Ints, Replay, check_window, replay
from apparate.catalog import RampCatalog
from apparate.feedback import Records

MAX_CYCLES = 20  # of sweeps at one price; two or three do, a bound keeps a tie from running for ever
CHEAPEST = 2.0**-3  # lowest price of a disagreement, in passes: whoever still loses at it has budget for everything
BISECTIONS = 5  # between the last price that fits the budget and the first that does not
PULL_BACK = (0.0, 0.5, 0.75, 0.9)  # what is left of one ramp's cut before the others fill again
POLISH_CELLS = 1_500_000  # records x ramps looked at while polishing: all there is in small windows, ~10 ms in large


@dataclass(frozen=True, eq=False)
class Found:
    """Where a search ended: cut positions with the time (ticks) and disagreements they give on the window."""

    cuts: Ints
    ticks: float
    wrong: int

    def better_than(self, other: Found) -> bool:
        """Whether answers come sooner, or as soon with fewer disagreements."""
        return (self.ticks, self.wrong) < (other.ticks, other.wrong)


def sweep(
    records: Records, catalog: RampCatalog, active: Sequence[int], max_loss: float, *, polish_cells: int = POLISH_CELLS
) -> Replay:
    """The thresholds with the largest saving on `records` that sweeps find at a loss of no more than `max_loss`.

    Deterministic and independent of the order of records. Says nothing of the loss on future requests: that is
    tuned to the limit of this window and will overshoot; see `certified`. Raises ValueError for an empty window.
    """
    check_window(records, active)
    ranked = RankedErrors.of(records)
    found = search(ranked, Outcomes.of(records, catalog, active), allowed_wrong(max_loss, len(records)), polish_cells)
    return replay(records, ranked.thresholds(found.cuts), catalog, active)


def search(ranked: RankedErrors, outcomes: Outcomes, allowed: int, polish_cells: int = POLISH_CELLS) -> Found:
    """The best cuts found with no more than `allowed` disagreements."""
    return _Search(ranked, outcomes, allowed).run(polish_cells)


def path(ranked: RankedErrors, outcomes: Outcomes, allowed: int) -> list[Found]:
    """The way from all closed to the boldest cuts found with no more than `allowed` disagreements.

    The fixed points of the sweeps at falling prices, each the best known for its number of disagreements: every one
    has more of them than the one before, and saves more. Starts with all closed.
    """
    return _Search(ranked, outcomes, allowed).path()


class _Search:
    def __init__(self, ranked: RankedErrors, outcomes: Outcomes, allowed: int) -> None:
        self.ranked, self.outcomes, self.allowed = ranked, outcomes, allowed
        self.ramps, self.n = ranked.rank.shape
        self.flat_order = ranked.order + np.arange(self.ramps)[:, None] * self.n

    def run(self, polish_cells: int) -> Found:
        best = self.found(np.zeros(self.ramps, np.int64))
        if not self.ramps or not self.n:
            return best
        for candidate in self.ladder():
            if candidate.better_than(best):
                best = candidate
        return self.polish(self.fill(best), polish_cells)

    def path(self) -> list[Found]:
        points = [self.found(np.zeros(self.ramps, np.int64))]
        if not self.ramps or not self.n:
            return points
        for candidate in sorted(self.ladder(), key=lambda found: (found.wrong, found.ticks)):
            if candidate.ticks < points[-1].ticks:
                points.append(candidate)
        filled = self.fill(points[-1])
        return [*points, filled] if filled.better_than(points[-1]) else points

    def found(self, cuts: Ints) -> Found:
        return Found(cuts, *self.outcomes.total(self.ranked.rank < cuts[:, None]))

    def ladder(self) -> list[Found]:
        """Fixed points of the sweeps at falling prices that keep within the budget; the last is the boldest."""
        price = TICKS * self.n
        cuts: Ints = np.zeros(self.ramps, np.int64)
        fitting: list[Found] = []
        while price >= TICKS * CHEAPEST:
            candidate = self.found(self.settle(cuts, price))
            if candidate.wrong > self.allowed:
                return fitting + self.bisect(cuts, price, price * 2)
            fitting.append(candidate)
            cuts, price = candidate.cuts, price / 2
        return fitting

    def bisect(self, cuts: Ints, too_low: float, fits: float) -> list[Found]:
        fitting: list[Found] = []
        for _ in range(BISECTIONS):
            price = float(np.rint(np.sqrt(too_low * fits)))
            candidate = self.found(self.settle(cuts, price))
            if candidate.wrong > self.allowed:
                too_low = price
            else:
                fits, cuts = price, candidate.cuts
                fitting.append(candidate)
        return fitting

    def settle(self, cuts: Ints, price: float) -> Ints:
        """Sweep from `cuts` until no ramp's cut can be bettered alone, at `price` ticks for a disagreement."""
        cost = self.outcomes.values.real + price * self.outcomes.values.imag
        for _ in range(MAX_CYCLES):
            swept = self.cycle(cuts, cost)
            if np.array_equal(swept, cuts):
                break
            cuts = swept
        return cuts

    def cycle(self, cuts: Ints, cost: Floats) -> Ints:
        """One sweep, deep to shallow, over `cost` [k+1, N] of each record at each exit."""
        reaches = _reaches(self.ranked.rank < cuts[:, None])
        otherwise = cost[-1].copy()  # of the exits behind the ramp at hand
        swept = np.zeros_like(cuts)
        for j in reversed(range(self.ramps)):
            gained = np.multiply(otherwise - cost[j], reaches[j])[self.ranked.order[j]].cumsum()
            gained += self.ranked.no_cut[j]
            at = int(gained.argmax())  # the first of equals: the smallest cut
            if gained[at] > 0:
                swept[j] = at + 1
                np.copyto(otherwise, cost[j], where=self.ranked.rank[j] <= at)
        return swept

    def fill(self, found: Found) -> Found:
        """Make the single change of one cut with the most time gained within the budget, until there is none."""
        while (jumped := self.best_jump(found)) is not None:
            found = jumped
        return found

    def best_jump(self, found: Found) -> Found | None:
        leaves = self.ranked.rank < found.cuts[:, None]
        gained = self.gains(leaves)
        column = np.arange(self.ramps)
        now = np.where(found.cuts > 0, gained[column, found.cuts - 1], 0)
        # From the total as it is, take back what the present cut gains, add what another one would.
        wrong = (found.wrong + now.imag)[:, None] - gained.imag
        ticks = (found.ticks + now.real)[:, None] - gained.real
        ticks[(wrong > self.allowed) | (self.ranked.no_cut < 0)] = np.inf
        ramp, at = divmod(int(ticks.argmin()), self.n)
        if not ticks[ramp, at] < found.ticks:
            return None
        cuts = found.cuts.copy()
        cuts[ramp] = at + 1
        return Found(cuts, float(ticks[ramp, at]), round(wrong[ramp, at]))

    def gains(self, leaves: npt.NDArray[np.bool_]) -> npt.NDArray[np.complex128]:
        """[k, N] ticks gained + 1j * disagreements avoided by each possible cut of each ramp, against closing it."""
        values = self.outcomes.values
        otherwise = values[-1].copy()
        change = np.empty((self.ramps, self.n), np.complex128)
        for j in reversed(range(self.ramps)):
            np.subtract(otherwise, values[j], out=change[j])
            np.copyto(otherwise, values[j], where=leaves[j])
        change[~_reaches(leaves)] = 0
        gained: npt.NDArray[np.complex128] = change.ravel()[self.flat_order].cumsum(axis=1)
        return gained

    def polish(self, best: Found, cells: int) -> Found:
        """Pull one ramp back and fill again, for as long as that helps and the work allowed lasts."""
        improved, left = True, cells // max(1, self.ramps * self.n)
        while improved:
            improved = False
            for j in np.flatnonzero(best.cuts):
                for share in PULL_BACK:
                    if left <= 0:
                        return best
                    left -= 2  # a refill takes two jumps or so
                    cuts = best.cuts.copy()
                    cuts[j] = self.pulled_back(int(j), share * cuts[j])
                    candidate = self.found(cuts)
                    if candidate.wrong <= self.allowed and (candidate := self.fill(candidate)).better_than(best):
                        best, improved = candidate, True
        return best

    def pulled_back(self, ramp: int, cut: float) -> int:
        """The largest cut of `ramp` that exists and is no more than `cut`."""
        existing = np.flatnonzero(self.ranked.no_cut[ramp, : int(cut)] == 0)
        return int(existing[-1]) + 1 if len(existing) else 0


def _reaches(leaves: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """[k, N] whether each record gets as far as each ramp."""
    reaches = np.ones_like(leaves)
    if len(leaves) > 1:
        np.logical_not(np.logical_or.accumulate(leaves[:-1], axis=0), out=reaches[1:])
    return reaches
