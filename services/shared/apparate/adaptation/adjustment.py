"""The next set of ramps when only the active ones report: drop what costs more than it saves, probe for better.

Depth makes exiting easier: whatever could leave at a ramp could also leave at the next deeper one. So the exit shares
of dropped ramps nearby bound what a candidate can at most take over, and the bound ranks candidates without trying.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from apparate.adaptation.exits import Floats, profile_rows
from apparate.catalog import RampCatalog
from apparate.feedback import Records

TOLERANCE = 0.001  # of the whole pass; a ramp that costs less than this is not worth an unsettled plan


@dataclass(frozen=True, eq=False)
class Profile:
    """A catalog's latencies averaged over the batch sizes of a window: reach_ms [R], overhead_ms [R], full_ms."""

    reach_ms: Floats
    overhead_ms: Floats
    full_ms: float

    @classmethod
    def of(cls, records: Records, catalog: RampCatalog) -> Profile:
        """The profile that `records` were served at. They must not be empty."""
        counts = np.bincount(profile_rows(records, catalog), minlength=len(catalog.batch_sizes))
        weights = counts / counts.sum()
        return cls(weights @ catalog.reach_ms, weights @ catalog.overhead_ms, float(weights @ catalog.full_ms))


@dataclass(frozen=True)
class Candidate:
    """An inactive ramp, the largest share of requests that could leave there, and the most time in ms that saves."""

    ramp: int
    share: float
    utility: float


@dataclass(frozen=True)
class Adjustment:
    """A new set of active ramps, shallow to deep, and how it differs from the old."""

    active: tuple[int, ...]
    dropped: tuple[int, ...] = ()
    added: int | None = None
    before: int | None = None
    """Set when every active ramp is worth its time: the ramp that the added one stands before, or replaces."""

    def tell(self, layers: Sequence[str], utilities: Mapping[int, float]) -> str:
        """One sentence with the names of the ramps and what they were worth."""
        if self.before is not None and self.added is not None:
            beside, worth = layers[self.before], f"{utilities[self.before]:+.3f} ms"
            if self.dropped:
                return f"{beside}, worth least with {worth}, moved to {layers[self.added]}"
            return f"{layers[self.added]} added before {beside}, worth most with {worth}"
        parts = [f"{layers[r]} dropped, worth {utilities[r]:+.3f} ms" for r in self.dropped]
        return "; ".join(parts + ([f"{layers[self.added]} added"] if self.added is not None else []))


def candidates(
    profile: Profile,
    *,
    feasible: Sequence[int],
    keep: Sequence[int],
    dead: Sequence[int],
    rates: Mapping[int, float],
    rest: float,
) -> list[Candidate]:
    """An upper bound for each feasible ramp that is neither kept nor just dropped (`dead`), shallow to deep.

    rates: exit share of every ramp in keep and dead; rest: share of requests that left nowhere.
    """
    found = []
    for c in (c for c in feasible if c not in keep and c not in dead):
        low = max((r for r in keep if r < c), default=-1)
        high = min((r for r in keep if r > c), default=None)
        behind = [d for d in dead if d > c and (high is None or d < high)]
        share = sum(rates[d] for d in dead if low < d < c)
        if behind:
            share += rates[min(behind)]
        else:
            share += rates[high] if high is not None else rest
        reaching = 1.0 - sum(rates[r] for r in keep if r < c)
        otherwise = profile.full_ms if high is None else profile.reach_ms[high] + profile.overhead_ms[high]
        utility = share * (otherwise - profile.reach_ms[c]) - reaching * profile.overhead_ms[c]
        found.append(Candidate(c, float(share), float(utility)))
    return found


def adjust(
    profile: Profile,
    *,
    feasible: Sequence[int],
    active: Sequence[int],
    utilities: Sequence[float] | Floats,
    rates: Sequence[float],
    fits: Callable[[Sequence[int]], bool],
    tolerance: float = TOLERANCE,
) -> Adjustment | None:
    """The next set of ramps; None when nothing is to be changed.

    utilities [k] in ms and rates [k+1] as from a replay, of the active ramps; fits tells whether a set is within the
    overhead budget. At most one ramp is added at a time.
    """
    worth = dict(zip(active, utilities, strict=True))
    dead = [r for r in active if worth[r] < -tolerance * profile.full_ms]
    if dead:
        keep = [r for r in active if r not in dead]
        shares: dict[int, float] = dict(zip(active, rates[:-1], strict=True))
        bounds = candidates(profile, feasible=feasible, keep=keep, dead=dead, rates=shares, rest=rates[-1])
        able = [c for c in bounds if c.utility > 0 and fits(sorted([*keep, c.ramp]))]
        best = min(able, key=lambda c: (-c.utility, c.ramp), default=None)
        if best is None and not keep:
            return None  # without any ramp there is no feedback to come back on
        added = best.ramp if best else None
        return Adjustment(_sorted(keep, added), tuple(dead), added)
    most = min(active, key=lambda r: (-worth[r], r))
    site = _free_site_before(most, active, feasible)
    if site is not None and fits(sorted([*active, site])):
        return Adjustment(_sorted(active, site), (), site, most)
    least = min(active, key=lambda r: (worth[r], r))
    site = _free_site_before(least, active, feasible)
    rest = [r for r in active if r != least]
    if site is None or not fits(sorted([*rest, site])):
        return None
    return Adjustment(_sorted(rest, site), (least,), site, least)


def _free_site_before(ramp: int, active: Sequence[int], feasible: Sequence[int]) -> int | None:
    """The nearest feasible site before `ramp` that is behind the active ramp before it."""
    previous = max((r for r in active if r < ramp), default=-1)
    return max((c for c in feasible if previous < c < ramp), default=None)


def _sorted(ramps: Sequence[int], one: Any) -> tuple[int, ...]:
    return tuple(sorted([*ramps, one] if one is not None else ramps))
