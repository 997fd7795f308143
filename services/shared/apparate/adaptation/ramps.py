"""Which ramps are active: what each is worth, and the next set of them within the ramp overhead budget.

With feedback on every ramp (shadow ramps) whole sets are compared outright: `choose_ramps`. Without, one ramp at a
time is dropped, added or moved on what the active ones tell: `probe`, from the pieces of `adjustment`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np

from apparate.adaptation.adjustment import TOLERANCE, Adjustment, Profile, adjust
from apparate.adaptation.cuts import Outcomes, RankedErrors, allowed_wrong
from apparate.adaptation.exits import Floats, check_window, exit_ramps, profile_rows, replay
from apparate.adaptation.sweep import Found, search
from apparate.catalog import RampCatalog
from apparate.feedback import Records
from apparate.plan import Plan

WORTH_ONE_MORE = 0.002  # share of the pass that each ramp must save: less is the window's noise, and every ramp costs
EXHAUSTIVE_SETS = 150  # compare every set up to this many; more are searched by adding and exchanging ramps


def even_spacing(catalog: RampCatalog, overhead_budget: float) -> tuple[int, ...]:
    """The first ramps to deploy: as many as the overhead budget allows, evenly spaced up to the latest useful one."""
    feasible = catalog.feasible()
    for count in range(catalog.max_active_ramps(overhead_budget), 0, -1):
        active = _made_up(spread(count, max(catalog.latest_useful(), 1)), feasible)
        if catalog.fits(active, overhead_budget):
            return active
    fitting = [r for r in feasible if catalog.fits([r], overhead_budget)]  # where those in the middle cost too much
    return tuple(sorted(fitting, key=lambda r: (catalog.overhead_share([r]), r))[:1])


def _made_up(wanted: Sequence[int], feasible: Sequence[int]) -> tuple[int, ...]:
    """`wanted` with the nearest free ramp in the place of one that is named twice or is not feasible."""
    chosen = {r for r in wanted if r in feasible}
    for place in wanted:
        free = [(abs(r - place), r) for r in feasible if r not in chosen]
        if len(chosen) < len(wanted) and free:
            chosen.add(min(free)[1])
    return tuple(sorted(chosen))


def spread(count: int, sites: int) -> tuple[int, ...]:
    """`count` interior points of an even integer spacing of sites 0..sites-1; repeats where they are too few."""
    return tuple(i * (sites - 1) // (count + 1) for i in range(1, count + 1))


def utilities(
    records: Records, thresholds: Sequence[float] | Floats, catalog: RampCatalog, active: Sequence[int]
) -> Floats:
    """[k] mean time in ms that requests would lose if one active ramp vanished and all else stayed; negative: gain.

    Exact by leave-one-out: every active ramp reports on every request, so where each would leave instead is known.
    """
    check_window(records, active)
    limits = np.asarray(thresholds, np.float32)
    left_at = exit_ramps(records.errors, limits)
    exit_ms = catalog.exit_ms(active)[profile_rows(records, catalog)]  # [N, k+1]
    overhead_ms = catalog.overhead_ms[:, list(active)][profile_rows(records, catalog)]  # [N, k]
    worth = np.zeros(len(active))
    for j in range(len(active)):
        leaving = np.flatnonzero(left_at == j)
        instead = j + 1 + exit_ramps(records.errors[leaving, j + 1 :], limits[j + 1 :])
        gained = (exit_ms[leaving, instead] - exit_ms[leaving, j]).sum()
        worth[j] = (gained - overhead_ms[left_at >= j, j].sum()) / len(records)
    return worth


def next_ramp_utilities(
    records: Records, thresholds: Sequence[float] | Floats, catalog: RampCatalog, active: Sequence[int]
) -> Floats:
    """[k] the same from exit shares alone, as the released code does it; only to compare with.

    Takes every exit to be caught by the next active ramp, and charges the ramp to nobody who leaves at it. That
    overstates a single ramp and can call a good ramp of a dense set harmful; `utilities` is what decisions use.
    """
    shares = np.array(replay(records, thresholds, catalog, active).exit_rates)
    profile = Profile.of(records, catalog)
    paid = np.cumsum(profile.overhead_ms[list(active)])
    exit_ms = np.append(profile.reach_ms[list(active)] + paid, profile.full_ms + (paid[-1] if len(paid) else 0.0))
    behind = 1.0 - np.cumsum(shares)[:-1]
    worth: Floats = shares[:-1] * np.diff(exit_ms) - profile.overhead_ms[list(active)] * behind
    return worth


@dataclass(frozen=True)
class Change:
    """Another set of ramps, and what was done to get there in one sentence. The plan keeps its revision."""

    plan: Plan
    message: str
    adjustment: Adjustment


def probe(
    records: Records,
    plan: Plan,
    catalog: RampCatalog,
    overhead_budget: float,
    *,
    barred: Collection[int] = (),
    tolerance: float = TOLERANCE,
) -> Change | None:
    """The next set of ramps to try, told from records of the active ones only; None when there is nothing to try.

    Ramps that cost more than they save (by more than `tolerance`, a share of the whole pass) are dropped, and the
    most promising other one is added; when all are worth their time, a site before the most useful ramp is added, or
    without budget the least useful ramp is moved one site earlier. New ramps start closed. Tune before: thresholds
    that are out of date make good ramps look useless. barred: ramps that may not return yet.
    """
    if not plan.ramps or not len(records):
        return None
    replayed = replay(records, plan.thresholds, catalog, plan.active)
    worth = utilities(records, plan.thresholds, catalog, plan.active)
    adjustment = adjust(
        Profile.of(records, catalog),
        feasible=[r for r in catalog.feasible() if r not in barred or r in plan.active],
        active=plan.active,
        utilities=worth,
        rates=replayed.exit_rates,
        fits=lambda ramps: catalog.fits(ramps, overhead_budget),
        tolerance=tolerance,
    )
    if adjustment is None:
        return None
    kept = {s.ramp: s.threshold for s in plan.ramps}
    thresholds = [kept.get(r, 0.0) for r in adjustment.active]
    message = adjustment.tell(catalog.layers, dict(zip(plan.active, worth, strict=True)))
    return Change(Plan.of(plan.revision, adjustment.active, thresholds, plan.catalog), message, adjustment)


def choose_ramps(
    records: Records,
    catalog: RampCatalog,
    overhead_budget: float,
    max_loss: float,
    *,
    candidates: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """The set of ramps within the overhead budget that saves most on `records`, which know every candidate.

    The columns of `records` are the `candidates`, by default the catalog's feasible ramps. Sets are compared by the
    saving that a sweep without polish finds for them at a loss of no more than `max_loss`, less WORTH_ONE_MORE for each
    ramp: all sets when they are few, else forward selection followed by exchanges of one ramp. At least one ramp is
    chosen, if any fits, for without one there is no feedback. Raises ValueError for an empty window.
    """
    ramps = tuple(catalog.feasible() if candidates is None else candidates)
    check_window(records, ramps)
    sets = _RampSets(records, catalog, ramps, overhead_budget, max_loss)
    most = catalog.max_active_ramps(overhead_budget)
    if sum(comb(len(ramps), k) for k in range(1, most + 1)) <= EXHAUSTIVE_SETS:
        best = sets.best(c for k in range(1, most + 1) for c in combinations(range(len(ramps)), k))
    else:
        best = sets.exchange(sets.forward(most))
    return tuple(ramps[c] for c in best or ())


def set_worth(saving: float, ramps: int) -> float:
    """What so many ramps that save this share of the pass are worth, as a share of the pass."""
    return saving - WORTH_ONE_MORE * ramps


class _RampSets:
    """Sets of columns of one window, each searched once."""

    def __init__(
        self, records: Records, catalog: RampCatalog, ramps: Sequence[int], overhead_budget: float, max_loss: float
    ) -> None:
        self.records, self.catalog, self.ramps = records, catalog, ramps
        self.fits: Callable[[Sequence[int]], bool] = lambda active: catalog.fits(active, overhead_budget)
        self.allowed = allowed_wrong(max_loss, len(records))
        self.ranked = RankedErrors.of(records)
        self.scored: dict[tuple[int, ...], float] = {}

    def worth(self, columns: tuple[int, ...]) -> float:
        """What the set is worth on the window; minus infinity where it does not fit the budget."""
        if columns not in self.scored:
            active = [self.ramps[c] for c in columns]
            self.scored[columns] = (
                set_worth(self._search(columns, active), len(active)) if self.fits(active) else -np.inf
            )
        return self.scored[columns]

    def _search(self, columns: tuple[int, ...], active: Sequence[int]) -> float:
        records, ranked = self.records.columns(columns), self.ranked.columns(columns)
        found: Found = search(ranked, Outcomes.of(records, self.catalog, active), self.allowed, polish_cells=0)
        return replay(records, ranked.thresholds(found.cuts), self.catalog, active).saving

    def best(self, sets: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
        """The set that is worth most; of equals the one with fewer, then shallower ramps. None when none fits."""
        ranked = [(-self.worth(s), len(s), s) for s in sets]
        return min((r for r in ranked if r[0] < np.inf), default=(0.0, 0, None))[2]

    def forward(self, most: int) -> tuple[int, ...] | None:
        """Add the ramp that helps most, up to `most` of them, for as long as one helps."""
        chosen: tuple[int, ...] | None = None
        while len(chosen or ()) < most:
            extended = self.best(_with(chosen or (), c) for c in self._others(chosen or ()))
            if extended is None or (chosen is not None and self.worth(extended) <= self.worth(chosen)):
                break
            chosen = extended
        return chosen

    def exchange(self, chosen: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """Exchange one ramp for another, or leave one out, for as long as that is worth more."""
        while chosen:
            less = [tuple(c for c in chosen if c != out) for out in chosen]
            options = [s for s in less if s] + [_with(s, c) for s in less for c in self._others(chosen)]
            better = self.best(options)
            if better is None or self.worth(better) <= self.worth(chosen):
                return chosen
            chosen = better
        return chosen

    def _others(self, chosen: tuple[int, ...]) -> list[int]:
        return [c for c in range(len(self.ramps)) if c not in chosen]


def _with(columns: tuple[int, ...], one: int) -> tuple[int, ...]:
    return tuple(sorted((*columns, one)))
