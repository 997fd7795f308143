"""What the loop of one model tells of itself, as metrics and as logs that stay few when something fails for long."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from apparate.adaptation.policy import Decision, Reason
from apparate.catalog import RampCatalog
from apparate.contract.resource import EarlyExitModel
from apparate.service.kube import KubeError
from apparate.service.redis_client import UNREACHABLE
from apparate.service.telemetry import Sparsely, Telemetry, get_logger
from apparate.service.tracing import Tracing
from apparate_controller.errors import ControllerError, problem_of
from apparate_controller.intake import Session, Took
from apparate_controller.ports import Observer
from apparate_controller.sources.heartbeats import WorkerState
from apparate_controller.sources.redis_stream import Backlog

KINDS: dict[str, tuple[type[BaseException], ...]] = {
    "redis": UNREACHABLE,
    "kubernetes": (KubeError,),
    "controller": (ControllerError, ValueError),
}


class ModelObserver:
    """Adapter of loop.Observer: prometheus_client and structlog."""

    def __init__(
        self, telemetry: Telemetry, model: EarlyExitModel, catalog: RampCatalog, tracing: Tracing | None = None
    ) -> None:
        self._telemetry, self._catalog, self._tracing = telemetry, catalog, tracing
        self._labels = {"namespace": model.metadata.namespace, "model": model.metadata.name}
        self._log = get_logger(__name__).bind(model=model.key)
        self._failures, self._refusals, self._failed_since = Sparsely(), Sparsely(), 0.0
        for name in ("batches", "records", "duplicates", "lost", "late"):
            self._metric(f"apparate_feedback_{name}")  # 0 is something to know, too
        for reason in Reason:  # what rises from 0 is seen to rise: the first decision of each kind is marked, too
            self._metric("apparate_decisions", reason=reason.value)

    def took(self, took: Took) -> None:
        """Entries were worked off."""
        for name in ("batches", "records", "duplicates", "lost", "late"):
            if count := getattr(took, name):
                self._metric(f"apparate_feedback_{name}").inc(count)
        for cause, count in took.refused.items():
            self._metric("apparate_feedback_refused", cause=cause).inc(count)
        if took.refused and (held := self._refusals()) is not None:
            self._log.warning("feedback refused", problem=took.problem, held_back=held, exc_info=took.failure)
        if took.newest:
            age_s = time.time() - int(took.newest.partition("-")[0]) / 1e3  # an id begins with Redis's clock, in ms
            self._metric("apparate_feedback_age_seconds").set(max(0.0, age_s))
        if took.decision_s:
            self._metric("apparate_decision_seconds").observe(took.decision_s)
        if self._tracing is not None and took.decision is not None:
            self._trace(self._tracing, took, took.decision)

    def _trace(self, tracing: Tracing, took: Took, decision: Decision) -> None:
        """A span for a decision, linked to requests whose feedback it was taken on."""
        attributes: dict[str, str | bool | int | float] = {
            "apparate.model": self._labels["model"],
            "apparate.namespace": self._labels["namespace"],
            "apparate.reason": decision.reason.value,
            "apparate.message": decision.message,
            "apparate.records": decision.observed.samples,
        }
        if decision.plan is not None:
            attributes["apparate.plan_revision"] = decision.plan.revision
        ended = time.monotonic()
        tracing.linked("decision", took.traces, ended - took.decision_s, ended, attributes)

    def decided(self, decision: Decision) -> None:
        """A decision was taken."""
        self._metric("apparate_decisions", reason=decision.reason.value).inc()
        if decision.plan is not None or decision.reason.by_hand:
            told = {"revision": decision.plan.revision} if decision.plan is not None else {}
            self._log.info("decided", reason=decision.reason.value, message=decision.message, **told)

    def looked(self, session: Session, workers: Sequence[WorkerState], backlog: Backlog) -> None:
        """Workers and backlog were looked at."""
        plan, observed = session.plan, session.observed
        if observed.samples:
            self._metric("apparate_observed_loss_ratio").set(observed.loss)
            self._metric("apparate_observed_loss_upper_ratio").set(observed.loss_upper)
            self._metric("apparate_observed_saving_ratio").set(observed.saving)
            self._metric("apparate_observed_exit_ratio").set(observed.exit_rate)
        self._metric("apparate_published_plan_revision").set(plan.revision)
        self._metric("apparate_active_ramps").set(len(plan.ramps))
        self._metric("apparate_adaptation_wanted").set(session.adapts)
        self._metric("apparate_window_records").set(len(session.window))
        thresholds = {setting.ramp: setting.threshold for setting in plan.ramps}
        for ramp in range(self._catalog.ramps):
            self._metric("apparate_ramp_threshold_ratio", ramp=str(ramp)).set(thresholds.get(ramp, 0.0))
        self._metric("apparate_workers").set(len(workers))
        self._metric("apparate_updated_workers").set(sum(w.revision == plan.revision for w in workers))
        self._metric("apparate_feedback_lag_entries").set(backlog.lag)
        self._metric("apparate_feedback_pending_entries").set(backlog.pending)
        self._metric("apparate_feedback_stream_entries").set(backlog.length)

    def failed(self, error: BaseException) -> None:
        """An attempt failed and will be repeated."""
        kind = next((name for name, kinds in KINDS.items() if isinstance(error, kinds)), "unexpected")
        self._metric("apparate_controller_errors", kind=kind).inc()
        self._metric("apparate_model_adapting").set(0)
        self._failed_since = self._failed_since or time.monotonic()
        if (held := self._failures()) is not None:
            what = problem_of(error)
            self._log.warning("no progress, tried again", problem=what, held_back=held, exc_info=kind == "unexpected")

    def recovered(self) -> None:
        """An attempt succeeded after others had failed."""
        self._metric("apparate_model_adapting").set(1)
        if self._failed_since:
            self._log.info("goes on", after_s=round(time.monotonic() - self._failed_since, 3))
        else:
            self._log.info("reads feedback")
        self._failed_since = 0.0

    def _metric(self, name: str, **labels: str) -> Any:
        return self._telemetry(name, **self._labels, **labels)


class Observers:
    """Adapter of loop.Observer: tells several."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def took(self, took: Took) -> None:
        """Entries were worked off."""
        for one in self._observers:
            one.took(took)

    def decided(self, decision: Decision) -> None:
        """A decision was taken."""
        for one in self._observers:
            one.decided(decision)

    def looked(self, session: Session, workers: Sequence[WorkerState], backlog: Backlog) -> None:
        """Workers and backlog were looked at."""
        for one in self._observers:
            one.looked(session, workers, backlog)

    def failed(self, error: BaseException) -> None:
        """An attempt failed and will be repeated."""
        for one in self._observers:
            one.failed(error)

    def recovered(self) -> None:
        """An attempt succeeded after others had failed."""
        for one in self._observers:
            one.recovered()
