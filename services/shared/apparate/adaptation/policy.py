"""From a window of feedback to the next plan: what is checked, in which order, and the reason that is given.

`decide` is pure: the window, the plan in force and what it remembers go in, a decision and the new memory come out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from apparate.adaptation.exits import Replay, replay
from apparate.adaptation.ramps import choose_ramps, even_spacing, probe
from apparate.adaptation.thresholds import Tuned, binomial_upper, needed_records, tune
from apparate.catalog import RampCatalog
from apparate.feedback import FeedbackWindow, Records
from apparate.plan import Plan

TUNE_EVERY = 256  # records; certified tuning of a full window takes tens of milliseconds, so a few a second at most
TUNE_GROWTH = 4  # early on, tune again when the window has grown by a quarter: each record is worth most then
LEAST_RECORDS = 128
RECENT = (64, 256, 1024)  # newest records that must not contradict the certificate, which trusts the whole window
RECENT_LEVEL = 0.9  # a configuration is contradicted when so many disagreements had at most a tenth of probability
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


class Reason(StrEnum):
    """Why a decision was taken; the same word in status, metric label, log field and event."""

    STARTED = "Started"
    NOT_ENOUGH_FEEDBACK = "NotEnoughFeedback"
    LOSS_ABOVE_BUDGET = "LossAboveBudget"
    THRESHOLDS_TUNED = "ThresholdsTuned"
    RAMPS_ADJUSTED = "RampsAdjusted"
    ROLLED_BACK = "RolledBack"
    UNCHANGED = "Unchanged"


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
    adjusted_at: int = 0
    """Records ever added when the set of ramps was last looked at."""
    best: Plan | None = None
    best_saving: float = -math.inf
    """The plan that saved most over an adjustment period, and how much: where a rollback returns to."""
    worse_periods: int = 0
    wait: int = 1
    """Periods until the next probe of other ramps; doubles with each rollback."""
    waited: int = 0


def first_plan(catalog: RampCatalog, budget: Budget) -> Plan:
    """As many ramps as the overhead budget allows, evenly spaced, all closed: they only report at first."""
    active = even_spacing(catalog, budget.ramp_overhead)
    return Plan.of(0, active, [0.0] * len(active), catalog.digest)


def least_records(budget: Budget) -> int:
    """Fewest records that tuning starts from: enough for a certificate with some to spare."""
    return max(LEAST_RECORDS, math.ceil(1.2 * needed_records(budget.accuracy_loss, budget.confidence)))


def due(added: int, memory: Memory, budget: Budget, *, alarm: bool) -> bool:
    """Whether it is time to decide, `added` records into the life of the window."""
    if alarm:
        return True
    least = least_records(budget)
    if added < least:
        return False
    return added - memory.tuned_at >= min(TUNE_EVERY, max(64, memory.tuned_at // TUNE_GROWTH))


def decide(
    window: FeedbackWindow,
    plan: Plan,
    catalog: RampCatalog,
    budget: Budget,
    memory: Memory,
    *,
    alarm: bool = False,
    tuner: str = "certified",
) -> tuple[Decision, Memory]:
    """The next plan, if another one is needed, and why.

    Checks in this order: enough feedback; an alarm (answered at once with thresholds that the newest records do not
    contradict, so that a guard may open again); the set of ramps, when a period is over; thresholds.
    tuner: certified | sweep | hill_climb.
    """
    memory = replace(memory, tuned_at=window.added)
    records = window.over(plan.active)
    least = least_records(budget)
    if len(records) < least:
        message = f"{len(records)} records of the active ramps, {least} needed"
        if alarm and plan.exits_open:
            return Decision(Reason.LOSS_ABOVE_BUDGET, f"alarm; {message}: exits closed", plan.closed()), memory
        return Decision(Reason.NOT_ENOUGH_FEEDBACK, message), memory
    observed = observe(window, records, plan, catalog, budget)
    if not alarm and window.added - memory.adjusted_at >= _period(window, memory):
        decision, memory = _adjust(window, records, plan, catalog, budget, memory, tuner=tuner)
        if decision is not None:
            return replace(decision, observed=observed), memory
    tuned, eased = tune_eased(records, catalog, plan.active, budget, tuner)
    found = Plan.of(plan.revision, plan.active, eased.thresholds, catalog.digest)
    told = _tell(eased, tuned, budget)
    if alarm:
        loss = f"{observed.loss:.2%} of {observed.samples} answers disagreed, {budget.accuracy_loss:.2%} allowed"
        return Decision(Reason.LOSS_ABOVE_BUDGET, f"alarm; {loss}; {told}", found, observed), memory
    in_force = replay(records, plan.thresholds, catalog, plan.active)
    if _contradicted(records, in_force, budget) or abs(eased.saving - in_force.saving) > WORTH_A_PLAN:
        return Decision(Reason.THRESHOLDS_TUNED, told, found, observed), memory
    return Decision(Reason.UNCHANGED, told, None, observed), memory


def observe(
    window: FeedbackWindow, records: Records, plan: Plan, catalog: RampCatalog, budget: Budget
) -> Observed:
    """What was released over the window, and what the plan in force saves on it."""
    exited, wrong = window.released()
    replayed = replay(records, plan.thresholds, catalog, plan.active)
    return Observed(
        samples=len(wrong),
        loss=float(wrong.mean()),
        loss_upper=binomial_upper(int(wrong.sum()), len(wrong), budget.confidence),
        saving=replayed.saving,
        exit_rate=float(exited.mean()),
    )


def tune_eased(
    records: Records, catalog: RampCatalog, active: tuple[int, ...], budget: Budget, tuner: str
) -> tuple[Tuned, Replay]:
    """Thresholds from the whole window, eased until the newest records do not contradict them.

    The certificate holds when the window and what follows are alike; the newest records tell when they are not.
    Easing steps back along the tuner's chain of configurations, from the boldest it accepted towards all closed.
    """
    tuned = tune(tuner, records, catalog, active, budget.accuracy_loss, budget.confidence)
    if tuner != "certified":
        return tuned, tuned.replay
    for thresholds in reversed(tuned.chain[: tuned.accepted + 1]):
        candidate = tuned.replay if thresholds is tuned.thresholds else replay(records, thresholds, catalog, active)
        if not _contradicted(records, candidate, budget):
            return tuned, candidate
    closed = np.zeros(len(active), np.float32)
    return tuned, replay(records, closed, catalog, active)


def _contradicted(records: Records, candidate: Replay, budget: Budget) -> bool:
    """Whether the newest records disagree with `candidate` more often than its budget makes likely."""
    thresholds = np.array(candidate.thresholds, np.float32)
    lets_go = records.errors[-RECENT[-1] :] < thresholds
    first = lets_go.argmax(axis=1) if lets_go.shape[1] else np.zeros(len(lets_go), int)
    rows = np.arange(len(lets_go))
    wrong = lets_go.any(axis=1)
    if lets_go.shape[1]:
        wrong &= ~records.agree[-RECENT[-1] :][rows, first]
    return any(
        int(wrong[-count:].sum()) > likely_most(count, budget.accuracy_loss) for count in RECENT if len(wrong) >= count
    )


def likely_most(count: int, loss: float, level: float = RECENT_LEVEL) -> int:
    """Smallest k with P[Bin(count, loss) <= k] >= level: more disagreements than this contradict that loss."""
    term = total = math.exp(count * math.log1p(-loss))
    k = 0
    while total < level and k < count:
        k += 1
        term *= (count - k + 1) / k * loss / (1.0 - loss)
        total += term
    return k


def _period(window: FeedbackWindow, memory: Memory) -> int:
    """Records between two looks at the set of ramps: one window, and sooner while the window is still filling."""
    return max(LEAST_RECORDS, min(window.size, memory.adjusted_at))


def _adjust(
    window: FeedbackWindow,
    records: Records,
    plan: Plan,
    catalog: RampCatalog,
    budget: Budget,
    memory: Memory,
    *,
    tuner: str,
) -> tuple[Decision | None, Memory]:
    """Another set of ramps, if one is worth it; None leaves the thresholds to be tuned as usual.

    With feedback on ramps that are switched off, all sets are compared on the same records. Without, one ramp at a
    time is probed, and a guard returns to the best plan known when that made things worse.
    """
    memory = replace(memory, adjusted_at=window.added)
    known = window.over(catalog.feasible(), newest=window.size)
    if len(known) >= least_records(budget):
        return _choose(window, known, plan, catalog, budget, tuner), memory
    return _probe(records, plan, catalog, budget, memory, window.added)


def _choose(
    window: FeedbackWindow, known: Records, plan: Plan, catalog: RampCatalog, budget: Budget, tuner: str
) -> Decision | None:
    feasible = catalog.feasible()
    newest = known.take(slice(-SEARCH_RECORDS, None))
    chosen = choose_ramps(newest, catalog, budget.ramp_overhead, budget.accuracy_loss)
    if chosen == plan.active:
        return None
    position = {ramp: column for column, ramp in enumerate(feasible)}

    def saving(ramps: tuple[int, ...]) -> float:
        subset = known.columns([position[r] for r in ramps])
        return tune_eased(subset, catalog, ramps, budget, tuner)[1].saving

    now, then = saving(tuple(r for r in plan.active if r in position)), saving(chosen)
    if then - now <= WORTH_A_RAMP_CHANGE:
        return None
    subset = window.over(chosen)
    tuned, eased = tune_eased(subset, catalog, chosen, budget, tuner)
    names = ", ".join(catalog.layers[r] for r in chosen)
    message = f"ramps {names} save {then:.1%} where those in force save {now:.1%}, on {len(known)} records of all ramps"
    found = Plan.of(plan.revision, chosen, eased.thresholds, catalog.digest)
    return Decision(Reason.RAMPS_ADJUSTED, f"{message}; {_tell(eased, tuned, budget)}", found)


def _probe(
    records: Records, plan: Plan, catalog: RampCatalog, budget: Budget, memory: Memory, added: int
) -> tuple[Decision | None, Memory]:
    saved = replay(records, plan.thresholds, catalog, plan.active).saving
    if saved > memory.best_saving:
        memory = replace(memory, best=plan, best_saving=saved, worse_periods=0)
    elif saved < memory.best_saving - WORTH_A_RAMP_CHANGE:
        memory = replace(memory, worse_periods=memory.worse_periods + 1)
        if memory.worse_periods >= PERIODS_WORSE and memory.best is not None and memory.best.active != plan.active:
            message = f"saving {saved:.1%} for {PERIODS_WORSE} periods, {memory.best_saving:.1%} before"
            back = replace(memory.best, revision=plan.revision)
            memory = replace(memory, worse_periods=0, wait=memory.wait * 2, waited=0, best_saving=-math.inf)
            return Decision(Reason.ROLLED_BACK, message, back), memory
    else:
        memory = replace(memory, worse_periods=0)
    if memory.waited + 1 < memory.wait:
        return None, replace(memory, waited=memory.waited + 1)
    memory = replace(memory, waited=0)
    change = probe(records, plan, catalog, budget.ramp_overhead)
    if change is None:
        return None, memory
    return Decision(Reason.RAMPS_ADJUSTED, change.message, change.plan), memory


def _tell(eased: Replay, tuned: Tuned, budget: Budget) -> str:
    bound = f", at most {tuned.upper_bound:.2%} with {budget.confidence:.0%} confidence" if tuned.certified else ""
    return (
        f"thresholds {', '.join(f'{t:.4f}' for t in eased.thresholds)}: {eased.exit_rate:.1%} leave early, "
        f"saving {eased.saving:.1%}, loss {eased.loss:.2%} on {eased.n} records{bound}"
    )
