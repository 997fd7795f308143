"""From a window of feedback to the next plan: what is checked, in which order, and the reason that is given.

`decide` is pure: the window, the plan in force and what it remembers go in, a decision and the new memory come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from apparate.adaptation.binomial import upper_bound
from apparate.adaptation.certified import CHECKED_SHARE
from apparate.adaptation.cuts import ROUNDING_SLACK
from apparate.adaptation.easing import RECENT, Eased, step, tune_eased, uncontradicted
from apparate.adaptation.exits import replay
from apparate.adaptation.guard import WINDOW_ANSWERS
from apparate.adaptation.ramps import choose_ramps, even_spacing, probe, set_worth
from apparate.adaptation.sampling import tuned_share
from apparate.adaptation.thresholds import Method
from apparate.catalog import RampCatalog
from apparate.feedback import FeedbackWindow, Records
from apparate.plan import Plan

CHECK_EVERY = 256  # records between two looks at whether the plan in force still holds
TUNE_SHARE = 8  # tune when an eighth of the window is new: more often finds little and takes tens of milliseconds
TUNE_GROWTH = 4  # early on, tune again when the window has grown by a quarter: each record is worth most then
LEAST_RECORDS = 128
LEAST_SPARE = 1.2  # so that the first tuning may already let something go: 512 records at 1 % and 95 %
FORWARD_LOSS = 0.75  # of the budget: a step forward takes time to show, and comes too late when less is left
WORTH_A_PLAN = 0.002  # share of the pass; less saving gained or given up is not worth another revision
WORTH_A_RAMP_CHANGE = 0.01  # one point of saving, as for the rollback
SEARCH_RECORDS = 2048  # ramp sets are searched on so many of the newest records that all ramps reported on
PERIODS_WORSE = 2  # in a row, before the best known ramps and thresholds are restored


@dataclass(frozen=True)
class Budget:
    """What early exits may cost, all as shares 0..1."""

    accuracy_loss: float = 0.01
    ramp_overhead: float = 0.02
    confidence: float = 0.95
    checked_share: float = 1.0
    """Least probability with which a batch is run to the end, so that its answers are checked."""

    @property
    def tuned_loss(self) -> float:
        """The loss that plans are tuned to: less than the budget where guards book some for what is not checked."""
        return self.accuracy_loss * tuned_share(self.checked_share)


class Reason(StrEnum):
    """Why a decision was taken; the same word in status, metric label, log field and event."""

    STARTED = "Started"
    NOT_ENOUGH_FEEDBACK = "NotEnoughFeedback"
    LOSS_ABOVE_BUDGET = "LossAboveBudget"
    THRESHOLDS_TUNED = "ThresholdsTuned"
    RAMPS_ADJUSTED = "RampsAdjusted"
    ROLLED_BACK = "RolledBack"
    UNCHANGED = "Unchanged"
    # By people, or what they use; all others are the policy's own
    ROLLED_BACK_BY_HAND = "RolledBackByHand"
    PUT_BY_HAND = "PutByHand"
    PAUSED_BY_HAND = "PausedByHand"
    RESUMED_BY_HAND = "ResumedByHand"

    @property
    def by_hand(self) -> bool:
        """Whether somebody asked for it."""
        return self in _BY_HAND


_BY_HAND = (Reason.ROLLED_BACK_BY_HAND, Reason.PUT_BY_HAND, Reason.PAUSED_BY_HAND, Reason.RESUMED_BY_HAND)


@dataclass(frozen=True)
class Observed:
    """What the window says of the plan in force."""

    samples: int = 0
    loss: float = 0.0
    loss_upper: float = 1.0
    """Upper confidence bound of the loss."""
    saving: float = 0.0
    """Share of the plain pass's time that answers leave earlier, on average."""
    exit_rate: float = 0.0


@dataclass(frozen=True)
class Decision:
    """A decision and its reason; `plan` is None when the plan in force stays."""

    reason: Reason
    message: str
    plan: Plan | None = None
    observed: Observed = Observed()


@dataclass(frozen=True)
class Memory:
    """What the policy remembers of one model between decisions."""

    tuned_at: int = 0
    """Records ever added when thresholds were last tuned."""
    eased: Eased | None = None
    """What that tuning accepted, while its ramps are the active ones, and what of it is deployed."""
    adjusted_at: int = 0
    """Records ever added when the set of ramps was last looked at."""
    best: Plan | None = None
    best_saving: float = -math.inf
    """The plan that saved most over an adjustment period, and how much: where a rollback returns to."""
    worse_periods: int = 0
    wait: int = 1
    """Periods until the next probe of other ramps; doubles with each rollback."""
    waited: int = 0
    barred: tuple[int, ...] = ()
    """Ramps dropped in the last period: they may not return in the next."""


@dataclass(frozen=True, eq=False)
class Search:
    """A search for the set of ramps that saves most, over records of all feasible ramps. Pure; may take a second."""

    records: Records
    catalog: RampCatalog
    budget: Budget

    def run(self) -> tuple[int, ...]:
        """The set of ramps to propose to `decide`."""
        return choose_ramps(self.records, self.catalog, self.budget.ramp_overhead, self.budget.tuned_loss)


def first_plan(catalog: RampCatalog, budget: Budget) -> Plan:
    """As many ramps as the overhead budget allows, evenly spaced, all closed: they only report at first."""
    active = even_spacing(catalog, budget.ramp_overhead)
    return Plan.of(0, active, [0.0] * len(active), catalog.digest)


def none_fits(catalog: RampCatalog, budget: Budget) -> str:
    """Why a plan has no ramps, and what to do, for people."""
    costs = [catalog.overhead_share([r]) for r in catalog.feasible()]
    if not costs:
        return (
            f"none of {catalog.ramps} ramps answers sooner than the whole pass at every profiled batch size: "
            "the plain model"
        )
    return (
        f"no ramp fits the ramp overhead of {budget.ramp_overhead:.2%}, the cheapest costs {min(costs):.2%} of a pass: "
        "the plain model; raise spec.budget.rampOverhead"
    )


def least_records(budget: Budget) -> int:
    """Fewest records that tuning starts from: enough for a certificate with some to spare."""
    checked = math.log(1.0 - budget.confidence) / math.log1p(-budget.tuned_loss)  # without one disagreement
    return max(LEAST_RECORDS, math.ceil(LEAST_SPARE * checked / CHECKED_SHARE))


def due(window: FeedbackWindow, memory: Memory, budget: Budget) -> bool:
    """Whether it is time to tune: when the window has grown by a quarter, later when an eighth of it is new."""
    if window.added < least_records(budget):
        return False
    late = max(CHECK_EVERY, len(window) // TUNE_SHARE)
    return window.added - memory.tuned_at >= min(late, max(64, memory.tuned_at // TUNE_GROWTH))


def step_due(window: FeedbackWindow, plan: Plan, memory: Memory, budget: Budget) -> bool:
    """Whether the newest records disagree with the plan in force more than its budget makes likely, or hold it back no
    longer. Cheap.

    There is no step forward while the budget of the window that guards keep is nearly used up: they would close the
    exits soon after it.
    """
    chain = _chain(memory, plan)
    forward = (
        chain is not None and chain.held_back and _loss(window, WINDOW_ANSWERS) <= FORWARD_LOSS * budget.tuned_loss
    )
    if not (forward or plan.exits_open):
        return False
    tried = [plan.thresholds, chain.next_thresholds] if chain is not None and forward else [plan.thresholds]
    fine = uncontradicted(window.over(plan.active, newest=RECENT[-1]), np.array(tried), budget.tuned_loss)
    return not fine[0] or (forward and bool(fine[-1]))


def _chain(memory: Memory, plan: Plan) -> Eased | None:
    """What the last tuning accepted for the plan's ramps, when there are steps to take on it."""
    known = memory.eased
    return known if known is not None and known.has_steps and known.active == plan.active else None


def adjustment_due(window: FeedbackWindow, memory: Memory) -> bool:
    """Whether a period is over, after which the set of ramps is looked at: one window, sooner while that fills."""
    return window.added - memory.adjusted_at >= max(LEAST_RECORDS, min(window.size, memory.adjusted_at))


def search_for(window: FeedbackWindow, catalog: RampCatalog, budget: Budget) -> Search | None:
    """The search to run when an adjustment is due; None when too few records know all ramps, and `decide` probes."""
    known = window.over(catalog.feasible(), newest=window.size)
    if len(known) < least_records(budget):
        return None
    return Search(known.take(slice(-SEARCH_RECORDS, None)), catalog, budget)


def decide(
    window: FeedbackWindow,
    plan: Plan,
    catalog: RampCatalog,
    budget: Budget,
    memory: Memory,
    *,
    alarm: bool = False,
    proposal: tuple[int, ...] | None = None,
    probing: bool = False,
    method: Method = Method.CERTIFIED,
) -> tuple[Decision, Memory]:
    """The next plan, if another one is needed, and why.

    Checks in this order: a ramp is active; enough feedback; an alarm (answered at once with thresholds that the newest
    records do not contradict, so that a guard may open again); the set of ramps, when a search proposes one or probing
    is due; thresholds.
    """
    records = window.over(plan.active)
    if not plan.active:  # nothing reports, so nothing is tuned: the reason is always the same
        observed = observe(window, records, plan, catalog, budget) if len(records) else Observed()
        memory = replace(memory, tuned_at=window.added, eased=None)
        return Decision(Reason.UNCHANGED, none_fits(catalog, budget), observed=observed), memory
    least = least_records(budget)
    if len(records) < least:
        message = f"{len(records)} records of the active ramps, {least} needed"
        if least > window.size:
            message += (
                f", the window holds {window.size}: a budget of {budget.accuracy_loss:.2%} can never be proven so; "
                "raise spec.adaptation.window, or the budget"
            )
        memory = replace(memory, tuned_at=window.added, eased=None)
        if alarm and plan.exits_open:
            return Decision(Reason.LOSS_ABOVE_BUDGET, f"alarm; {message}: exits closed", plan.closed()), memory
        return Decision(Reason.NOT_ENOUGH_FEEDBACK, message), memory
    observed = observe(window, records, plan, catalog, budget)
    decision, eased = None, None
    if proposal is not None and not alarm:
        decision, eased = _compare_sets(window, plan, catalog, budget, proposal, method)
    elif probing and not alarm:
        decision, memory = _probe(records, plan, catalog, budget, memory, method)
    if decision is not None:
        return replace(decision, observed=observed), replace(memory, tuned_at=window.added, eased=eased)
    chain = _chain(memory, plan)
    if chain is not None and (alarm or not due(window, memory, budget)):
        eased = step(records, catalog, chain, budget.tuned_loss, back=alarm)
    else:
        eased = _tune(records, catalog, plan.active, budget, method)
        memory = replace(memory, tuned_at=window.added)
    memory = replace(memory, eased=eased)
    found = Plan.of(plan.revision, plan.active, eased.replay.thresholds, catalog.digest)
    told = _tell(eased, budget)
    if alarm:
        loss = f"{observed.loss:.2%} of {observed.samples} answers disagreed, {budget.accuracy_loss:.2%} allowed"
        return Decision(Reason.LOSS_ABOVE_BUDGET, f"alarm; {loss}; {told}", found, observed), memory
    fine = bool(uncontradicted(records, plan.thresholds[None], budget.tuned_loss)[0])
    if not fine or abs(eased.replay.saving - observed.saving) > WORTH_A_PLAN:
        return Decision(Reason.THRESHOLDS_TUNED, told, found, observed), memory
    return Decision(Reason.UNCHANGED, told, None, observed), memory


def observe(window: FeedbackWindow, records: Records, plan: Plan, catalog: RampCatalog, budget: Budget) -> Observed:
    """What was released over the window, and what the plan in force saves on it.

    Where only some batches were run to the end, each record counts for as many as it stands for, so that nothing
    depends on when more of them were. The bound is that of as many records of equal weight as say the same.
    """
    exited, _ = window.released()
    weights = window.weights()
    replayed = replay(records, plan.thresholds, catalog, plan.active)
    loss = _loss(window)
    equal = float(weights.sum() ** 2 / (weights**2).sum())  # Kish's effective number
    return Observed(
        samples=len(exited),
        loss=loss,
        loss_upper=upper_bound(
            math.ceil(loss * equal - ROUNDING_SLACK), math.floor(equal + ROUNDING_SLACK), 1.0 - budget.confidence
        ),
        saving=replayed.saving,
        exit_rate=float(np.average(exited, weights=weights)),
    )


def _loss(window: FeedbackWindow, newest: int | None = None) -> float:
    """Share of what was released, as far as the newest records tell, that disagrees. There must be records."""
    return float(np.average(window.released(newest)[1], weights=window.weights(newest)))


def _tune(records: Records, catalog: RampCatalog, active: tuple[int, ...], budget: Budget, method: Method) -> Eased:
    return tune_eased(records, catalog, active, max_loss=budget.tuned_loss, method=method, confidence=budget.confidence)


def _compare_sets(
    window: FeedbackWindow,
    plan: Plan,
    catalog: RampCatalog,
    budget: Budget,
    proposal: tuple[int, ...],
    method: Method,
) -> tuple[Decision, Eased] | tuple[None, None]:
    """The proposed set of ramps, when it saves enough more than the one in force on the records that know both, or,
    being part of it, when the ramps to drop are not worth their time."""
    both = tuple(sorted({*proposal, *plan.active}))
    known = window.over(both)
    if proposal == plan.active or len(known) < least_records(budget):
        return None, None
    now, then = (
        _tune(known.columns([both.index(r) for r in ramps]), catalog, ramps, budget, method).replay.saving
        for ramps in (plan.active, proposal)
    )
    drops_only = set(proposal) < set(plan.active)
    if set_worth(then, len(proposal)) - set_worth(now, len(plan.active)) <= (
        0.0 if drops_only else WORTH_A_RAMP_CHANGE
    ):
        return None, None
    eased = _tune(window.over(proposal), catalog, proposal, budget, method)
    names = ", ".join(catalog.layers[r] for r in proposal)
    message = f"ramps {names} save {then:.1%} where those in force save {now:.1%}, on {len(known)} records of both"
    found = Plan.of(plan.revision, proposal, eased.replay.thresholds, catalog.digest)
    return Decision(Reason.RAMPS_ADJUSTED, f"{message}; {_tell(eased, budget)}", found), eased


def _probe(
    records: Records, plan: Plan, catalog: RampCatalog, budget: Budget, memory: Memory, method: Method
) -> tuple[Decision | None, Memory]:
    """One step of trial and error: back to the best known plan, or another ramp, or nothing."""
    eased = _tune(records, catalog, plan.active, budget, method).replay
    tuned = Plan.of(plan.revision, plan.active, eased.thresholds, catalog.digest)
    memory = _compare(memory, tuned, eased.saving)
    if memory.worse_periods >= PERIODS_WORSE and memory.best is not None and memory.best.active != plan.active:
        message = f"saving {eased.saving:.1%}, {PERIODS_WORSE} periods below the {memory.best_saving:.1%} known before"
        back = replace(memory.best, revision=plan.revision)
        memory = replace(memory, worse_periods=0, wait=memory.wait * 2, waited=0, best_saving=-math.inf)
        return Decision(Reason.ROLLED_BACK, message, back), memory
    if memory.waited + 1 < memory.wait:
        return None, replace(memory, waited=memory.waited + 1)
    memory = replace(memory, waited=0)
    change = probe(records, tuned, catalog, budget.ramp_overhead, barred=memory.barred)
    if change is None:
        return None, replace(memory, barred=())
    memory = replace(memory, barred=change.adjustment.dropped)
    return Decision(Reason.RAMPS_ADJUSTED, change.message, change.plan), memory


def _compare(memory: Memory, plan: Plan, saving: float) -> Memory:
    """Remember the best plan, and how many periods in a row were worse than it by more than a point."""
    if saving > memory.best_saving:
        return replace(memory, best=plan, best_saving=saving, worse_periods=0)
    worse = saving < memory.best_saving - WORTH_A_RAMP_CHANGE
    return replace(memory, worse_periods=memory.worse_periods + 1 if worse else 0)


def _tell(found: Eased, budget: Budget) -> str:
    eased, bound = found.replay, ""
    if found.tuned.upper_bound is not None:
        bound = f", at most {found.tuned.upper_bound:.2%} with {budget.confidence:.0%} confidence"
    return (
        f"thresholds {', '.join(f'{t:.4f}' for t in eased.thresholds)}: {eased.exit_rate:.1%} leave early, "
        f"saving {eased.saving:.1%}, loss {eased.loss:.2%} on {eased.n} records{bound}"
    )
