"""What the status says of one model besides its plan: delivery, what the plan does, and the controller's conditions.

The functions are pure; StatusReporter collects what they need from the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from apparate.adaptation import policy
from apparate.adaptation.policy import Decision
from apparate.contract.conditions import ConditionType, Reason, condition
from apparate.contract.resource import Budget, Condition, Delivery, Observed
from apparate.contract.status import AccuracyLoss, RampObserved
from apparate.plan import newer
from apparate.service.redis_client import UNREACHABLE, Failing, failing
from apparate_controller.intake import Session, Took
from apparate_controller.sinks.status import StatusSink
from apparate_controller.sources.heartbeats import WorkerState
from apparate_controller.sources.redis_stream import Backlog

DIGITS = 4  # of what is observed; finer changes are not worth a write
REFUSALS_NAMED = 3
REDIS_AWAY_S = 10.0  # shorter failures are nobody's business: the loop goes on by itself


@dataclass(frozen=True)
class Traffic:
    """Since when, in seconds, things have not happened; None: never happened."""

    current_record_s: float | None = None
    """Since the last record of the plan in force, or of its predecessor while the plan is young."""
    request_s: float | None = None
    """Since workers were last seen to have answered more requests."""
    refused_s: float | None = None
    """Since the last entry that could not be used."""
    failing_s: float = 0.0
    """For how long the stream could not be read."""


def delivery_of(revision: int, workers: Sequence[WorkerState]) -> Delivery:
    """How many live workers run `revision`."""
    return Delivery(
        revision=revision, workers=len(workers), updated_workers=sum(w.revision == revision for w in workers)
    )


def plan_delivered(revision: int, workers: Sequence[WorkerState]) -> tuple[bool | None, Reason, str]:
    """Whether all live workers run the plan in force."""
    if not revision:
        return None, Reason.NO_PLAN, "no plan was decided yet: workers run the plain model"
    if not workers:
        return None, Reason.NO_WORKERS, f"no worker is heard of that could run plan revision {revision}"
    behind = [worker for worker in workers if worker.revision != revision]
    said = f"{len(workers) - len(behind)} of {len(workers)} workers run plan revision {revision}"
    if not behind:
        return True, Reason.DELIVERED, said
    refusals = [f"{w.name} refused it: {w.refused}" for w in behind if w.refused and w.refused_revision == revision]
    if refusals:
        more = f"; and {len(refusals) - REFUSALS_NAMED} more" if len(refusals) > REFUSALS_NAMED else ""
        return False, Reason.PLAN_REFUSED, "; ".join([said, *refusals[:REFUSALS_NAMED]]) + more
    return False, Reason.DELIVERING, said


@dataclass(frozen=True)
class Trouble:
    """What is wrong with the way of the feedback, in words that stay the same while it is the same trouble."""

    redis: Failing | None = None
    """Why the stream is not read."""
    refused: str = ""
    """What was wrong with a batch that could not be used."""


def feedback_flowing(
    revision: int,
    workers: Sequence[WorkerState],
    traffic: Traffic,
    timeout_s: float,
    trouble: Trouble = Trouble(),
) -> tuple[bool | None, Reason, str]:
    """Whether feedback of the plan in force arrives."""
    if traffic.failing_s >= REDIS_AWAY_S and trouble.redis is not None:
        reason = Reason.REDIS_UNREACHABLE if trouble.redis.silent else Reason.REDIS_REFUSED
        return None, reason, f"the controller cannot read the feedback stream: {trouble.redis.words}"
    flowing = traffic.current_record_s is not None and traffic.current_record_s <= timeout_s
    refusing = traffic.refused_s is not None and traffic.refused_s <= timeout_s
    if flowing:
        more = "; others are refused, see apparate_feedback_refused_total" if refusing else ""
        return True, Reason.FLOWING, f"records of plan revision {revision} arrive{more}"
    if refusing:
        return (
            False,
            Reason.FEEDBACK_REFUSED,
            f"feedback comes, but none for {timeout_s:.0f} s could be used: {trouble.refused}; by cause counted in "
            "apparate_feedback_refused_total: undecodable and catalog pass when all workers run this version and "
            "catalog, failed is a fault of the controller, see its log",
        )
    if not workers:
        return None, Reason.NO_WORKERS, "no worker is heard of"
    if traffic.request_s is None or traffic.request_s > timeout_s:
        return None, Reason.NO_TRAFFIC, f"workers answered no request for {timeout_s:.0f} s"
    return (
        False,
        Reason.NO_FEEDBACK,
        f"workers answer requests, but no record of plan revision {revision} came for {timeout_s:.0f} s: look for "
        "apparate_feedback_dropped_total at the workers, and whether they run this plan",
    )


def accuracy_met(observed: Observed | None, budget: Budget) -> tuple[bool | None, Reason, str]:
    """Whether the loss is within budget."""
    least = policy.least_records(policy.Budget(budget.accuracy_loss, budget.ramp_overhead, budget.confidence))
    loss = observed.accuracy_loss if observed is not None else None
    if loss is None or loss.samples < least:
        seen = loss.samples if loss is not None else 0
        return None, Reason.TOO_FEW_RECORDS, f"{seen} answers were looked at, {least} are needed"
    said = (
        f"{loss.value:.2%} of {loss.samples} answers disagree with the model's own, {budget.accuracy_loss:.2%} allowed"
    )
    if loss.value <= budget.accuracy_loss:
        return True, Reason.WITHIN_BUDGET, said
    return False, Reason.ABOVE_BUDGET, f"{said}; the next plan lets fewer go"


def observed_of(described: Mapping[str, Any]) -> Observed | None:
    """What a session tells of its plan, in the status's words; None before there is anything."""
    seen, ramps = described.get("observed", {}), described.get("ramps", [])
    if not seen.get("samples"):
        return None
    return Observed(
        accuracy_loss=AccuracyLoss(
            value=_short(seen["loss"]), upper=_short(seen["lossUpper"]), samples=int(seen["samples"])
        ),
        latency_saved_ratio=max(-1.0, min(1.0, _short(seen["saving"]))),
        exit_rate=_short(seen["exitRate"]),
        ramps=tuple(
            RampObserved(
                ramp=one["ramp"],
                exit_rate=_short(one["exitRate"]),
                agreement=None if one["agreement"] is None else _short(one["agreement"]),
                saved_ms=_short(one["savedMs"]),
            )
            for one in ramps
        ),
    )


def _short(value: float) -> float:
    return round(float(value), DIGITS)


@dataclass
class StatusReporter:
    """Adapter of loop.Observer that keeps the status of one model up to date."""

    sink: StatusSink
    budget: Budget
    feedback_timeout_s: float
    generation: Callable[[], int]
    decided_plan: Callable[[], None] = lambda: None
    """Called when a decision changed the plan."""
    clock: Callable[[], float] = time.monotonic
    _revision: int = field(default=0, init=False)
    _record_at: float | None = field(default=None, init=False)
    _request_at: float | None = field(default=None, init=False)
    _refused_at: float | None = field(default=None, init=False)
    _refused_for: frozenset[str] = field(default=frozenset(), init=False)
    _refused: str = field(default="", init=False)
    _redis: Failing | None = field(default=None, init=False)
    _served: int = field(default=0, init=False)
    _failing_since: float | None = field(default=None, init=False)
    _workers: Sequence[WorkerState] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._started_at = self.clock()

    def took(self, took: Took) -> None:
        """Entries were worked off."""
        if took.records and not newer(self._revision, took.revision):
            self._record_at = self.clock()
        if took.refused:
            self._refused_at = self.clock()
            causes = frozenset(took.refused)
            if causes != self._refused_for:  # each batch has words of its own, and one example is enough
                self._refused_for, self._refused = causes, f"{', '.join(sorted(causes))}: {took.problem}"

    def decided(self, decision: Decision) -> None:
        """A decision was taken."""
        if decision.plan is not None:
            self.decided_plan()

    def looked(self, session: Session, workers: Sequence[WorkerState], backlog: Backlog) -> None:
        """Workers and backlog were looked at."""
        self._revision, self._workers, self._failing_since = session.plan.revision, workers, None
        served = sum(worker.served for worker in workers)
        if served > self._served and self._served:
            self._request_at = self.clock()
        self._served = served
        delivered = self._condition(ConditionType.PLAN_DELIVERED, plan_delivered(self._revision, workers))
        self.sink.report(delivery=delivery_of(self._revision, workers), conditions=[delivered])
        self._report_flow()

    def failed(self, error: BaseException) -> None:
        """An attempt failed and will be repeated."""
        if isinstance(error, UNREACHABLE):
            self._failing_since = self.clock() if self._failing_since is None else self._failing_since
            self._redis = failing(error)
            self._report_flow()

    def recovered(self) -> None:
        """An attempt succeeded after others had failed."""
        self._failing_since = None

    def observed(self, described: Mapping[str, Any]) -> None:
        """Report what a session tells of its plan."""
        observed = observed_of(described)
        said = accuracy_met(observed, self.budget)
        self.sink.report(observed=observed, conditions=[self._condition(ConditionType.ACCURACY_MET, said)])

    def _report_flow(self) -> None:
        """Report whether feedback flows; just started, leave what is said of it until there is something to say."""
        known = any(at is not None for at in (self._record_at, self._refused_at, self._failing_since))
        young = self.clock() - self._started_at < self.feedback_timeout_s
        if not known and young and self.sink.says(ConditionType.FEEDBACK_FLOWING):
            return
        if self._failing_since is not None and self._traffic().failing_s < REDIS_AWAY_S:
            return
        trouble = Trouble(self._redis, self._refused)
        said = feedback_flowing(self._revision, self._workers, self._traffic(), self.feedback_timeout_s, trouble)
        self.sink.report(conditions=[self._condition(ConditionType.FEEDBACK_FLOWING, said)])

    def _traffic(self) -> Traffic:
        now = self.clock()
        return Traffic(
            current_record_s=None if self._record_at is None else now - self._record_at,
            request_s=None if self._request_at is None else now - self._request_at,
            refused_s=None if self._refused_at is None else now - self._refused_at,
            failing_s=0.0 if self._failing_since is None else now - self._failing_since,
        )

    def _condition(self, kind: ConditionType, said: tuple[bool | None, Reason, str]) -> Condition:
        holds, reason, message = said
        return condition(kind, holds, reason, message, now=datetime.now(UTC), generation=self.generation())
