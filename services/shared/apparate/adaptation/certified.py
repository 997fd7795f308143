"""The default tuner: thresholds whose loss on future requests is within the budget at a stated confidence.

Tuning to the limit of a window overshoots on what comes after it. So one part of the window is searched, at twice the
budget, and only the other part decides how far to go there: a chain of configurations from all closed to the search's
end is walked from safe to bold, and the walk stops at the first that the other part does not certify. The chain is
fixed before that part is looked at and is walked in order, so the tests need no correction for their number (fixed
sequence testing): P(true loss of what is deployed > budget) <= 1 - confidence.

The promise holds for exchangeable requests. Real traffic drifts and its records are correlated, which makes them
worth fewer than they are; the loss monitor of `guard` watches what comes after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from apparate.adaptation.binomial import certified_count, upper_bound
from apparate.adaptation.cuts import ROUNDING_SLACK, Outcomes, RankedErrors, allowed_wrong, thresholds_between
from apparate.adaptation.exits import Floats, Ints, Replay, check_window, replay
from apparate.adaptation.sweep import search
from apparate.catalog import RampCatalog
from apparate.feedback import Records

Split = Literal["interleaved", "ordered"]

SEARCH_TENTHS = 3  # 30 % of a window is searched, 70 % certifies
SEARCH_LOSS = 2.0  # budgets: the search goes further than will be certified, so that the chain's end is never the limit
STEPS = 40  # of the chain
BLOCK = 50  # records of one part in a row when interleaved: longer than most repeats of one scene or burst


@dataclass(frozen=True, eq=False)
class Chain:
    """Configurations from all closed (factor 0) to where the search ended (1), by scaling every ramp's exit rank.

    errors: [cut + 1] for each ramp, the errors it let go in the searched part in rising order, then the next one, or 1.
    """

    errors: tuple[npt.NDArray[np.float32], ...] = ()

    def at(self, factor: float | Floats) -> Floats:
        """Thresholds at a rank factor 0..1: [k] for a number, [S, k] for S factors. Never falls as the factor rises."""
        columns = [_thresholds_at(errors, np.asarray(factor, np.float64)) for errors in self.errors]
        return np.stack(columns, axis=-1) if columns else np.zeros((*np.shape(factor), 0))


@dataclass(frozen=True, eq=False)
class Tuned:
    """What a tuner found, on the whole window, and what it proves.

    certified is whether the confidence was reached, trivially so when every ramp stays closed in a window that is
    large enough. upper_bound of the loss comes from the `checked` records that decided, and is None where a tuner
    has none. allowance is how many of those may disagree, -1 when they are too few to certify anything.
    """

    replay: Replay
    certified: bool = False
    upper_bound: float | None = None
    allowance: int = -1
    checked: int = 0
    chain: Chain = Chain()
    factor: float = 0.0
    """Where on the chain the thresholds are."""

    @property
    def thresholds(self) -> tuple[float, ...]:
        """[k] thresholds to deploy."""
        return self.replay.thresholds


def certified(
    records: Records,
    catalog: RampCatalog,
    active: Sequence[int],
    max_loss: float,
    confidence: float = 0.95,
    *,
    split: Split = "interleaved",
) -> Tuned:
    """The boldest thresholds on a searched chain that `records` certify to lose no more than `max_loss`.

    On the window itself the loss never exceeds `max_loss` either. Deterministic; depends on the order of records only
    through the split, and there only on which part each record falls in. Raises ValueError for an empty window.
    """
    check_window(records, active)
    searched, checked = split_window(len(records), split)
    first, second = records.take(searched), records.take(checked)
    ranked = RankedErrors.of(first)
    allowed = allowed_wrong(SEARCH_LOSS * max_loss, len(first))
    end = search(ranked, Outcomes.of(first, catalog, active), allowed)
    chain = Chain(tuple(np.append(ranked.errors[r], np.float32(1))[: cut + 1] for r, cut in enumerate(end.cuts)))

    delta = 1.0 - confidence
    allowance = certified_count(len(second), max_loss, delta)
    factors = np.arange(STEPS + 1) / STEPS
    thresholds = chain.at(factors)
    wrong = chain_wrong(second, thresholds)
    in_window = wrong + chain_wrong(first, thresholds)  # a stop of our own, earlier than the certificate's
    passed = accepted(wrong, allowance, in_window <= allowed_wrong(max_loss, len(records)))
    step = max(passed - 1, 0)
    return Tuned(
        replay=replay(records, thresholds[step], catalog, active),
        certified=passed > 0,
        upper_bound=upper_bound(int(wrong[step]), len(second), delta) if passed else None,
        allowance=allowance,
        checked=len(second),
        chain=chain,
        factor=float(factors[step]),
    )


def split_window(n: int, split: Split) -> tuple[Ints, Ints]:
    """Rows to search and rows to certify with, 3 to 7, both in order.

    interleaved  blocks of 50 records take turns, so that both parts see all of the window's time
    ordered      the oldest records are searched: certifies on what came later, at the price of what has drifted
    """
    rows = np.arange(n)
    if split == "ordered":
        searched = rows < n * SEARCH_TENTHS // 10
    else:
        searched = (rows // BLOCK * SEARCH_TENTHS) % 10 < SEARCH_TENTHS  # blocks 0, 4, 7 of each ten
    return np.flatnonzero(searched), np.flatnonzero(~searched)


def chain_wrong(records: Records, thresholds: Floats) -> Ints:
    """[S] disagreements among `records` under each of S rising configurations, thresholds [S, k], in one pass.

    A record leaves ramp j from the first step on whose threshold there is above its error, until a shallower ramp
    takes it; only records that are wrong at j count, and add one over that range of steps.
    """
    steps = len(thresholds)
    changes = np.zeros(steps + 1, np.int64)
    taken_from = np.full(len(records), steps)  # the step from which a shallower ramp has the record
    for j in range(records.ramps):
        opens = np.searchsorted(thresholds[:, j].astype(np.float32), records.errors[:, j], side="right")
        opens[np.isnan(records.errors[:, j])] = steps
        wrong = ~records.agree[:, j] & (opens < taken_from)
        changes += np.bincount(opens[wrong], minlength=steps + 1)
        changes -= np.bincount(taken_from[wrong], minlength=steps + 1)
        np.minimum(taken_from, opens, out=taken_from)
    found: Ints = changes[:steps].cumsum()
    return found


def accepted(wrong: Ints, allowance: int, also: npt.NDArray[np.bool_] | None = None) -> int:
    """How many configurations of a chain pass, from the first up to the first that exceeds the allowance."""
    passes = np.asarray(wrong) <= allowance
    if also is not None:
        passes = passes & also
    return len(passes) if passes.all() else int(passes.argmin())


def _thresholds_at(errors: npt.NDArray[np.float32], factor: Floats) -> Floats:
    """Thresholds of one ramp at rank factors, letting go that share of its cut; `errors` as in Chain."""
    cut = len(errors) - 1
    ranks = np.floor(factor * cut + ROUNDING_SLACK).astype(np.int64)
    if cut == 0:
        return np.zeros(ranks.shape)
    return np.where(ranks > 0, thresholds_between(errors[np.maximum(ranks, 1) - 1], errors[ranks]), 0.0)
