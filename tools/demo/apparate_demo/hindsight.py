"""How good the adaptation was, judged afterwards on the recording of the run's second half.

The same records, the same ramps: what answers really saved, what the best fixed thresholds would have saved with a
loss within budget, chosen with all of it in sight, and what an oracle would have, that lets each request leave at the
first ramp that is right. Savings are of service time, as the catalog has it for the batch size of each record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from apparate.adaptation.baselines.hindsight import hindsight
from apparate.adaptation.baselines.oracle import oracle
from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.feedback import FINAL, Records
from apparate_demo.recording import Table, achieved_ms

Ramps = tuple[int, ...]
LEAST_RECORDS = 100  # below it shares of savings are noise


def second_half(table: Table, catalog: RampCatalog, plans: Sequence[PlanStatus], budget: float) -> dict[str, Any]:
    """Savings as shares of the plain pass: achieved, hindsight, oracle; empty when there are too few records."""
    half = table.rows(slice(len(table) // 2, None))
    active: dict[int, Ramps] = {p.revision: tuple(r.ramp for r in p.ramps) for p in plans}
    ramps = _ramps_in_force(half, active)
    known = ~np.isnan(half.err[:, list(ramps)]).any(axis=1)
    half = half.rows(known)
    if len(half) < LEAST_RECORDS or not ramps:
        return {}
    return {"records": len(half), "ramps": list(ramps), **judge(half, catalog, active, ramps, budget)}


def judge(
    half: Table, catalog: RampCatalog, active: dict[int, Ramps], ramps: Ramps, budget: float
) -> dict[str, float | None]:
    """The three savings and the loss of each, on records where all of `ramps` reported."""
    records = Records(
        half.err[:, list(ramps)], (half.top1 == half.final[:, None])[:, list(ramps)], half.batch.astype(np.int64)
    )
    plain_ms = float(catalog.full_ms[catalog.rows(half.batch)].sum())
    achieved = float(achieved_ms(half, catalog, active).sum()) / plain_ms
    best = hindsight(records, catalog, ramps, budget)
    early = np.flatnonzero(half.exits != FINAL)
    wrong = int((half.top1[early, half.exits[early]] != half.final[early]).sum())
    return {
        "achieved_saving": achieved,
        "achieved_loss": wrong / len(half),
        "hindsight_saving": best.saving,
        "hindsight_loss": best.loss,
        "oracle_saving": oracle(records, catalog, ramps).saving,
        "share_of_hindsight": achieved / best.saving if best.saving > 0 else None,
    }


def _ramps_in_force(half: Table, active: dict[int, Ramps]) -> Ramps:
    """The set of active ramps under which most of the records were served."""
    served: Counter[Ramps] = Counter()
    for revision, count in zip(*np.unique(half.revision, return_counts=True), strict=True):
        served[active.get(int(revision), ())] += int(count)
    return served.most_common(1)[0][0] if served else ()
