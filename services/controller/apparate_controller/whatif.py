"""What other budgets, and plans of the past, would do: asked of the window of a model that is being adapted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from apparate.adaptation.exits import replay
from apparate.adaptation.policy import SEARCH_RECORDS, Budget, none_fits
from apparate.adaptation.ramps import choose_ramps
from apparate.adaptation.thresholds import Method, tune
from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus, Spec
from apparate.feedback import Records
from apparate.plan import InvalidPlan, Plan
from apparate_controller.intake import Session
from apparate_controller.views import PlanReplay, WhatIf, WhatIfAnswer, WhatIfRamp


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
    ramp_overhead: float
    """The model's own: share of a pass that its ramps may cost."""
    confidence: float
    method: Method
    never: bool
    """Whether the model is forbidden to exit early."""


def known(session: Session, catalog: RampCatalog, spec: Spec, question: Question) -> Known:
    """A copy of what the session knows. In its own thread."""
    anew = question.ramp_overhead is not None
    feasible = session.window.over(catalog.feasible() if anew else (), newest=None if anew else 0)
    policy = spec.adaptation.policy
    method = Method.CERTIFIED if policy == "never" else Method(policy)
    active = session.window.over(session.plan.active)
    own = spec.budget
    return Known(
        plan=session.plan,
        catalog=catalog,
        active=active,
        feasible=feasible,
        budget=own.accuracy_loss,
        ramp_overhead=own.ramp_overhead,
        confidence=own.confidence,
        method=method,
        never=policy == "never",
    )


def answer(known: Known, question: Question) -> WhatIf:
    """What each budget would do, and what the plan in force does on the same records. Takes some 50 ms a budget."""
    records, plan, catalog = known.active, known.plan, known.catalog
    now = replay(records, plan.thresholds, catalog, plan.active) if len(records) and plan.ramps else None
    answers = [found for budget in question.budgets if (found := _under(known, question, budget)) is not None]
    if question.ramp_overhead is not None:
        records = known.feasible
    return WhatIf(
        records=len(records) if answers or plan.ramps else 0,
        problem="" if answers else _problem(known, question.ramp_overhead),
        loss=now.loss if now else None,
        saving=now.saving if now else None,
        exit_rate=now.exit_rate if now else None,
        answers=answers,
    )


def _problem(known: Known, overhead: float | None) -> str:
    """Why nothing can be said of any budget, and what to do."""
    catalog = known.catalog
    if not known.plan.ramps:
        why = none_fits(catalog, Budget(ramp_overhead=known.ramp_overhead))
        if known.never:
            why = "spec.adaptation.policy is never: the plain model; set another policy"
        then = ", then send requests and ask again" if catalog.feasible() else ""
        return (
            "nothing is known of any budget: no ramp is active, and in a plan without ramps those switched off are not "
            f"looked at either; {why}{then}"
        )
    if overhead is not None and not catalog.max_active_ramps(overhead):
        return none_fits(catalog, Budget(ramp_overhead=overhead))
    if overhead is not None and len(known.active):
        return (
            "no record knows every ramp yet, so none can be chosen anew: those switched off are looked at in a share "
            "of the passes (spec.adaptation.shadowShare); ask again later, or without a ramp overhead"
        )
    return "no feedback of these ramps yet: send requests first"


Past = list[tuple[Plan, Records]]


def replayable(session: Session, catalog: RampCatalog, plans: Iterable[PlanStatus]) -> Past:
    """Those of the plans that are of the catalog, each with a copy of the records that know its ramps. In the session's
    own thread: plans with the same ramps share a copy."""
    copies: dict[tuple[int, ...], Records] = {}
    found: Past = []
    for status in plans:
        try:
            plan = status.to_plan()
        except InvalidPlan:
            continue
        if not catalog.has(plan):
            continue
        if plan.active not in copies:
            copies[plan.active] = session.window.over(plan.active)
        if len(copies[plan.active]):
            found.append((plan, copies[plan.active]))
    return found


def replayed(past: Past, catalog: RampCatalog) -> list[PlanReplay]:
    """What each plan would have done to its records. Some 0.5 ms a plan and 8,192 records."""
    rows = []
    for plan, records in past:
        whole = replay(records, plan.thresholds, catalog, plan.active)
        rows.append(
            PlanReplay(
                revision=plan.revision,
                records=whole.n,
                loss=whole.loss,
                saving=whole.saving,
                exit_rate=whole.exit_rate,
            )
        )
    return rows


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
        exit_rate=found.exit_rate,
        ramps=[
            WhatIfRamp(ramp=ramp, layer=catalog.layers[ramp], threshold=threshold, exit_rate=rate)
            for ramp, threshold, rate in zip(ramps, found.thresholds, found.exit_rates, strict=False)
        ],
    )


def _columns(records: Records, columns: Sequence[int]) -> Records:
    chosen = list(columns)
    return Records(records.errors[:, chosen], records.agree[:, chosen], records.batch)
