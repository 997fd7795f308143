"""Every metric of every service, as data. Names: apparate_<noun>_<unit>, base units, no label from a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LATENCY_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096)
BATCH = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Metric:
    """One metric. A counter's name here is without `_total`, which exposition adds."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_MODEL = ("namespace", "model")
WORKER: tuple[Metric, ...] = (
    Metric(
        "apparate_requests",
        "counter",
        "Infer requests answered, by protocol and HTTP status.",
        (*_MODEL, "protocol", "code"),
    ),
    Metric("apparate_batch_requests", "histogram", "Requests of a pass.", _MODEL, BATCH),
    Metric("apparate_queue_seconds", "histogram", "Arrival to start of the pass.", _MODEL, LATENCY_S),
    Metric("apparate_pass_seconds", "histogram", "Start of a pass to its end.", _MODEL, LATENCY_S),
    Metric(
        "apparate_release_seconds",
        "histogram",
        "Arrival to release of the answer, by the ramp it left at (final: the model's own).",
        (*_MODEL, "ramp"),
        LATENCY_S,
    ),
    Metric("apparate_exits", "counter", "Answers released, by the ramp they left at.", (*_MODEL, "ramp")),
    Metric("apparate_wrong_exits", "counter", "Early answers that disagree with the model's own.", _MODEL),
    Metric("apparate_guard_closed", "gauge", "1 while the guard's alarm has closed the exits.", _MODEL),
    Metric("apparate_guard_alarms", "counter", "Alarms of the guard.", _MODEL),
    Metric("apparate_plan_revision", "gauge", "Revision of the plan in force at this worker.", _MODEL),
    Metric(
        "apparate_plans_refused",
        "counter",
        "Plans not run: malformed, older, catalog, ramp, budget.",
        (*_MODEL, "reason"),
    ),
    Metric("apparate_in_flight_requests", "gauge", "Items accepted and not yet answered.", _MODEL),
    Metric("apparate_waiting_requests", "gauge", "Items that wait for a pass.", _MODEL),
    Metric("apparate_ready", "gauge", "1 while requests are accepted and the device turns.", _MODEL),
    Metric("apparate_feedback_sent", "counter", "Feedback entries that Redis has.", _MODEL),
    Metric(
        "apparate_feedback_dropped", "counter", "Feedback entries given up: queue full, Redis full or gone.", _MODEL
    ),
)
CONTROLLER: tuple[Metric, ...] = (
    Metric("apparate_feedback_records", "counter", "Feedback records taken into the window.", _MODEL),
    Metric("apparate_feedback_batches", "counter", "Feedback batches read, without repeats.", _MODEL),
    Metric("apparate_feedback_duplicates", "counter", "Feedback batches that came again and were dropped.", _MODEL),
    Metric("apparate_feedback_lost", "counter", "Feedback batches declared lost: gaps in a worker's numbers.", _MODEL),
    Metric("apparate_feedback_late", "counter", "Feedback batches that came after they were declared lost.", _MODEL),
    Metric(
        "apparate_feedback_refused",
        "counter",
        "Stream entries that could not be used, by cause: undecodable, catalog, failed.",
        (*_MODEL, "cause"),
    ),
    Metric("apparate_feedback_lag_entries", "gauge", "Stream entries not yet read.", _MODEL),
    Metric("apparate_feedback_pending_entries", "gauge", "Stream entries read and not yet acked.", _MODEL),
    Metric("apparate_feedback_stream_entries", "gauge", "Entries in the feedback stream.", _MODEL),
    Metric("apparate_decisions", "counter", "Decisions, by reason.", (*_MODEL, "reason")),
    Metric("apparate_decision_seconds", "histogram", "Time to take a decision.", _MODEL, LATENCY_S),
    Metric("apparate_published_plan_revision", "gauge", "Revision of the plan in force.", _MODEL),
    Metric("apparate_active_ramps", "gauge", "Ramps of the plan in force.", _MODEL),
    Metric(
        "apparate_ramp_threshold_ratio",
        "gauge",
        "Threshold of each ramp of the catalog; 0 when it is closed or switched off.",
        (*_MODEL, "ramp"),
    ),
    Metric(
        "apparate_observed_loss_ratio",
        "gauge",
        "Share of released answers that disagree.",
        _MODEL,
    ),
    Metric("apparate_observed_loss_upper_ratio", "gauge", "Upper confidence bound of the loss.", _MODEL),
    Metric("apparate_observed_saving_ratio", "gauge", "Share of the plain pass that early answers saved.", _MODEL),
    Metric("apparate_observed_exit_ratio", "gauge", "Share of answers that left early.", _MODEL),
    Metric("apparate_workers", "gauge", "Live workers.", _MODEL),
    Metric("apparate_updated_workers", "gauge", "Live workers that run the plan in force.", _MODEL),
    Metric(
        "apparate_model_adapting",
        "gauge",
        "1 while the model's feedback is read.",
        _MODEL,
    ),
    Metric(
        "apparate_controller_errors",
        "counter",
        "Failures: redis, kubernetes, controller, unexpected.",
        (*_MODEL, "kind"),
    ),
    Metric(
        "apparate_controller_kubernetes_errors",
        "counter",
        "Calls on the Kubernetes API that failed, by verb and HTTP status; 0: no answer. 409 and 410 are in the "
        "normal course of things.",
        ("verb", "code"),
    ),
    Metric("apparate_status_writes", "counter", "Writes of the controller's share of the model's status.", _MODEL),
    Metric("apparate_leader", "gauge", "1 while this controller adapts; another one does when it is 0."),
    Metric("apparate_redis_eviction_risk", "gauge", "1 when Redis may evict streams."),
)

OPERATOR: tuple[Metric, ...] = (
    Metric("apparate_operator_models", "gauge", "EarlyExitModels that are looked after."),
    Metric("apparate_operator_leading", "gauge", "1 at the replica that acts."),
    Metric("apparate_operator_waiting_models", "gauge", "Models that wait to be looked at."),
    Metric("apparate_operator_reconciles", "counter", "Looks at a model: done, api, unexpected.", ("result",)),
    Metric("apparate_operator_reconcile_seconds", "histogram", "Time of one look at a model.", (), LATENCY_S),
    Metric("apparate_operator_writes", "counter", "Writes to the Kubernetes API, by kind and verb.", ("kind", "verb")),
    Metric("apparate_operator_last_event_timestamp_seconds", "gauge", "When a watch last told of a change.", ("kind",)),
    Metric("apparate_operator_last_resync_timestamp_seconds", "gauge", "When everything was last listed."),
    Metric("apparate_operator_missed_changes", "counter", "Changes that a list found and no watch told.", ("kind",)),
    Metric("apparate_operator_crd_outdated", "gauge", "1 when the installed CRD lacks fields of this version."),
    Metric("apparate_operator_loop_lag_seconds", "gauge", "How late the event loop is."),
)

METRICS: tuple[Metric, ...] = WORKER + CONTROLLER + OPERATOR
