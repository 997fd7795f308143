"""What thresholds would be, and do, under another budget: asked of the window of a model that is being adapted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apparate.adaptation.exits import replay
from apparate.adaptation.policy import SEARCH_RECORDS
from apparate.adaptation.ramps import choose_ramps
from apparate.adaptation.thresholds import Method, tune
from apparate.catalog import RampCatalog
from apparate.contract.resource import Spec
from apparate.feedback import Records
from apparate.plan import Plan
from apparate_controller.intake import Session
from apparate_controller.views import WhatIf, WhatIfAnswer, WhatIfRamp


@dataclass(frozen=True)
class Question:
    """Budgets to try, each on its own; all shares are 0..1."""

    budgets: tuple[float, ...]
    """Shares of answers that may differ from the model's own."""
    ramp_overhead: float | None = None
    """Share of a pass that ramps may cost: which ramps are active is chosen anew. None: those of the plan in force."""
    confidence: float | None = None
    """Of the certificate; None: the model's."""


@dataclass(frozen=True, eq=False)
class Known:
    """What a question is answered from, copied out of a session."""

    plan: Plan
    catalog: RampCatalog
    active: Records
    """Records of the plan's ramps, in its order."""
    feasible: Records
    """Records of every feasible ramp, also of those switched off; none unless ramps are to be chosen anew."""
    budget: float
    """The model's own: share of answers that may differ from the model's."""
    confidence: float
    method: Method


def known(session: Session, catalog: RampCatalog, spec: Spec, question: Question) -> Known:
    """A copy of what the session knows. In its own thread."""
    anew = question.ramp_overhead is not None
    feasible = session.window.over(catalog.feasible() if anew else (), newest=None if anew else 0)
    policy = spec.adaptation.policy
    method = Method.CERTIFIED if policy == "never" else Method(policy)
    active = session.window.over(session.plan.active)
    own = spec.budget
    return Known(session.plan, catalog, active, feasible, own.accuracy_loss, own.confidence, method)


def answer(known: Known, question: Question) -> WhatIf:
    """What each budget would do, and what the plan in force does on the same records. Takes some 50 ms a budget."""
    records, plan, catalog = known.active, known.plan, known.catalog
    now = replay(records, plan.thresholds, catalog, plan.active) if len(records) and plan.ramps else None
    return WhatIf(
        records=len(known.feasible if question.ramp_overhead is not None else records),
        loss=now.loss if now else None,
        saving=now.saving if now else None,
        exit_rate=1.0 - now.exit_rates[-1] if now else None,
        answers=[found for budget in question.budgets if (found := _under(known, question, budget)) is not None],
    )


def _under(known: Known, question: Question, budget: float) -> WhatIfAnswer | None:
    """What tuning for one budget finds; None without a record of the ramps."""
    catalog, ramps, records = known.catalog, known.plan.active, known.active
    if question.ramp_overhead is not None:
        feasible = catalog.feasible()
        if not len(known.feasible):
            return None
        newest = known.feasible.take(slice(-SEARCH_RECORDS, None))
        ramps = choose_ramps(newest, catalog, question.ramp_overhead, budget)
        records = _columns(known.feasible, [feasible.index(ramp) for ramp in ramps])
    if not len(records) or not ramps:
        return None
    confidence = question.confidence if question.confidence is not None else known.confidence
    tuned = tune(records, catalog, ramps, max_loss=budget, method=known.method, confidence=confidence)
    found = tuned.replay
    return WhatIfAnswer(
        accuracy_loss=budget,
        in_force=budget == known.budget,
        loss=found.loss,
        loss_upper=tuned.upper_bound,
        certified=tuned.certified,
        saving=found.saving,
        mean_ms=found.mean_ms,
        exit_rate=1.0 - found.exit_rates[-1],
        ramps=[
            WhatIfRamp(ramp=ramp, layer=catalog.layers[ramp], threshold=threshold, exit_rate=rate)
            for ramp, threshold, rate in zip(ramps, found.thresholds, found.exit_rates, strict=False)
        ],
    )


def _columns(records: Records, columns: Sequence[int]) -> Records:
    chosen = list(columns)
    return Records(records.errors[:, chosen], records.agree[:, chosen], records.batch)
