"""The default tuner: thresholds whose loss on future requests is within the budget at a stated confidence.

Tuning to the limit of a window overshoots on what comes after it. So one part of the window is searched, at up to
twice the budget, and only the other part decides how far to go there: the configurations on the search's way from all
closed to its end are walked from safe to bold, and the walk stops at the first that the other part does not certify.
That chain is fixed before the other part is looked at and is walked in order, so the tests need no correction for
their number (fixed sequence testing): P(true loss of what is deployed > budget) <= 1 - confidence.

The chain follows the search, whose every point is the best found for its number of disagreements. Scaling one end
point down for all ramps alike can save a good deal less with several ramps: the best thresholds at half the loss are
not half the best thresholds.

Where only a random part of the batches is run to the end, the window has only those, and the test counts them as they
are: what is drawn without looking at a batch is as much alike as the rest, whatever the probability was at the time.
On the window itself the loss is that of what the records stand for.

The promise holds for exchangeable requests. Real traffic drifts and its records are correlated, which makes them
worth fewer than they are; the guard of `guard` keeps the budget on what comes after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from apparate.adaptation.binomial import certified_count, upper_bound
from apparate.adaptation.cuts import ROUNDING_SLACK, Outcomes, RankedErrors, allowed_wrong
from apparate.adaptation.exits import Floats, Ints, Replay, check_window, count_wrong, exit_ramps, replay
from apparate.adaptation.sweep import Found, path
from apparate.catalog import RampCatalog
from apparate.feedback import Records

Split = Literal["interleaved", "ordered"]

SEARCH_TENTHS = 3  # 30 % of a window is searched, 70 % certifies
CHECKED_SHARE = 1.0 - SEARCH_TENTHS / 10
SEARCH_LOSS = 2.0  # budgets: the search goes further than will be certified, so that the chain's end is never the limit
STEPS = 40  # of the chain, and one more for each point of the search
BLOCK = 50  # records of one part in a row when interleaved: longer than most repeats of one scene or burst


@dataclass(frozen=True, eq=False)
class Chain:
    """Configurations from all closed to where the search ended, from safe to bold."""

    thresholds: Floats = field(default_factory=lambda: np.zeros((1, 0)))
    """[S, k]"""

    @classmethod
    def along(cls, ranked: RankedErrors, points: Sequence[Found]) -> Chain:
        """The points of a search, and steps between them that save about as much more each."""
        saved = np.array([points[0].ticks - point.ticks for point in points])  # rises strictly from point to point
        cuts = np.array([point.cuts for point in points], float).reshape(len(points), -1)
        at = np.arange(len(points), dtype=float)
        steps = np.unique(np.concatenate([np.interp(np.linspace(0.0, saved[-1], STEPS + 1), saved, at), at]))
        stages = np.array([np.interp(steps, at, column) for column in cuts.T]).reshape(-1, len(steps))
        thresholds = [ranked.thresholds(configuration) for configuration in stages.T.astype(np.int64)]
        return cls(np.array(thresholds).reshape(len(steps), -1))


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
    chain: Chain = field(default_factory=Chain)
    step: int = 0
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
    chain = Chain.along(ranked, path(ranked, Outcomes.of(first, catalog, active), allowed))

    delta = 1.0 - confidence
    allowance = certified_count(len(second), max_loss, delta)
    wrong = chain_wrong(second, chain.thresholds)
    if records.weight is None:  # a stop of our own, earlier than the certificate's
        within = wrong + chain_wrong(first, chain.thresholds) <= allowed_wrong(max_loss, len(records))
    else:
        within = chain_loss(records, records.weight, chain.thresholds) <= max_loss + ROUNDING_SLACK
    passed = accepted(wrong, allowance, within)
    step = max(passed - 1, 0)
    return Tuned(
        replay=replay(records, chain.thresholds[step], catalog, active),
        certified=passed > 0,
        upper_bound=upper_bound(int(wrong[step]), len(second), delta) if passed else None,
        allowance=allowance,
        checked=len(second),
        chain=chain,
        step=step,
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
    """[S] disagreements among `records` under each of S configurations, thresholds [S, k]."""
    doubtful = records.take(~records.agree.all(axis=1))  # whoever every ramp is right about cannot be answered wrong
    found = [count_wrong(doubtful, exit_ramps(doubtful.errors, one)) for one in thresholds]
    return np.array(found, np.int64)


def chain_loss(records: Records, weight: Floats, thresholds: Floats) -> Floats:
    """[S] share of what `records` stand for that disagrees under each of S configurations, thresholds [S, k]."""
    doubtful = np.flatnonzero(~records.agree.all(axis=1))
    errors, agree, weights = records.errors[doubtful], records.agree[doubtful], weight[doubtful]
    right = np.column_stack([agree, np.ones(len(doubtful), bool)])  # leaving nowhere is right
    rows = np.arange(len(doubtful))
    found = [float(weights[~right[rows, exit_ramps(errors, one)]].sum()) for one in thresholds]
    return np.array(found) / float(weight.sum())


def accepted(wrong: Ints, allowance: int, also: npt.NDArray[np.bool_] | None = None) -> int:
    """How many configurations of a chain pass, from the first up to the first that exceeds the allowance."""
    passes = np.asarray(wrong) <= allowance
    if also is not None:
        passes = passes & also
    return len(passes) if passes.all() else int(passes.argmin())
