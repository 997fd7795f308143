"""Every metric of every service, as data. Names: apparate_<noun>_<unit>, base units, no label from a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LATENCY_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096)
BATCH = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Metric:
    """One metric. A counter's name here is without `_total`, which exposition adds; a summary has a sum and a count."""

    name: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
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
    Metric("apparate_cache_hits", "counter", "Requests that got an answer again; only with a response cache.", _MODEL),
    Metric("apparate_cache_misses", "counter", "Requests that the response cache had no answer for.", _MODEL),
    Metric("apparate_cache_bytes", "gauge", "Memory of the response cache.", _MODEL),
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
    Metric(
        "apparate_plain_seconds",
        "histogram",
        "Arrival to when the plain model would have answered, by the ramp the answer left at: its release, plus what "
        "was left of the pass as profiled, less the ramps that it passed.",
        (*_MODEL, "ramp"),
        LATENCY_S,
    ),
    Metric(
        "apparate_segment_seconds",
        "summary",
        "From the ramp before, or the input, to what this ramp says (final: the end of the model). One pass in 32 is "
        "timed.",
        (*_MODEL, "ramp"),
    ),
    Metric("apparate_exits", "counter", "Answers released, by the ramp they left at.", (*_MODEL, "ramp")),
    Metric(
        "apparate_wrong_exits",
        "counter",
        "Early answers that disagree with the model's own, by the ramp they left at. In the mode compact, where only "
        "some passes are checked, each that is found counts for as many as it stands for.",
        (*_MODEL, "ramp"),
    ),
    Metric(
        "apparate_checked_answers",
        "counter",
        "Answers of passes that were run to the end, so that early ones among them were checked; all but in the mode "
        "compact.",
        _MODEL,
    ),
    Metric(
        "apparate_full_share_ratio",
        "gauge",
        "Probability with which a pass that may let answers go is run to the end now: 1, or less in the mode compact.",
        _MODEL,
    ),
    Metric(
        "apparate_stopped_passes",
        "counter",
        "Passes of the mode compact that ended before the end of the model, as every answer had left.",
        _MODEL,
    ),
    Metric("apparate_dropped_rows", "counter", "Answered rows that the mode compact computed no further.", _MODEL),
    Metric("apparate_saved_seconds", "counter", "Time of the device that this saved, as profiled.", _MODEL),
    Metric(
        "apparate_forced_exits",
        "counter",
        "Answers that left at a ramp whose error score was not below its threshold, or were dropped: 0 at any time.",
        _MODEL,
    ),
    Metric(
        "apparate_accuracy_budget_ratio", "gauge", "Share of answers that may disagree: the accuracy budget.", _MODEL
    ),
    Metric("apparate_guard_closed", "gauge", "1 while the guard's alarm has closed the exits.", _MODEL),
    Metric(
        "apparate_guard_spent",
        "gauge",
        "1 while exits are closed because the last answers have used the accuracy budget up; they open by themselves.",
        _MODEL,
    ),
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
    Metric("apparate_queue_limit_requests", "gauge", "Items that may wait; above it 429.", _MODEL),
    Metric("apparate_slo_seconds", "gauge", "Answers are wanted within this; only with an objective.", _MODEL),
    Metric("apparate_slo_target_ratio", "gauge", "Share of answers that are wanted within it.", _MODEL),
    Metric("apparate_slo_answers", "counter", "Answers that the objective was held against.", _MODEL),
    Metric("apparate_slo_late_answers", "counter", "Answers of these that came too late.", _MODEL),
    Metric(
        "apparate_gpu_memory_bytes",
        "gauge",
        "Memory of the worker's GPU, where it has one: total, free (of all processes), reserved and allocated by this.",
        (*_MODEL, "state"),
    ),
    Metric(
        "apparate_worker_info",
        "gauge",
        "1, with what this worker is: version of the product, device, digest of the catalog.",
        (*_MODEL, "version", "device", "catalog"),
    ),
    Metric(
        "apparate_refused_requests",
        "counter",
        "Requests refused because more came than could be served, by class (high, low) and reason (queue_full, "
        "low_class, would_be_late).",
        (*_MODEL, "priority", "reason"),
    ),
    Metric(
        "apparate_pressure",
        "gauge",
        "1 while a stage of what a worker does under pressure is on, or was within the last 10 s.",
        (*_MODEL, "stage"),
    ),
    Metric("apparate_pressure_entries", "counter", "How often a stage under pressure began.", (*_MODEL, "stage")),
    Metric("apparate_batch_limit_requests", "gauge", "Rows of the largest batch that the policy allows now.", _MODEL),
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
    Metric(
        "apparate_feedback_age_seconds",
        "gauge",
        "How old the newest entry was when it was worked off, by the clocks of Redis and of this controller.",
        _MODEL,
    ),
    Metric("apparate_feedback_pending_entries", "gauge", "Stream entries read and not yet acked.", _MODEL),
    Metric("apparate_feedback_stream_entries", "gauge", "Entries in the feedback stream.", _MODEL),
    Metric(
        "apparate_decisions",
        "counter",
        "Decisions, by reason; those that end in ByHand are people's.",
        (*_MODEL, "reason"),
    ),
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
        "apparate_adaptation_wanted",
        "gauge",
        "1 unless adaptation is paused, or the policy is never: exits are meant to open.",
        _MODEL,
    ),
    Metric("apparate_window_records", "gauge", "Feedback records in the window.", _MODEL),
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
    Metric("apparate_redis_up", "gauge", "1 when Redis answered when it was last looked at."),
    Metric("apparate_redis_answer_seconds", "gauge", "How long Redis took to answer then."),
    Metric("apparate_redis_used_memory_bytes", "gauge", "Memory that Redis uses; 0 where INFO is forbidden."),
    Metric("apparate_redis_memory_limit_bytes", "gauge", "Its maxmemory; 0: no limit."),
    Metric(
        "apparate_redis_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate ends that Redis shows over TLS; 0 without TLS.",
    ),
)

OPERATOR: tuple[Metric, ...] = (
    Metric("apparate_operator_models", "gauge", "EarlyExitModels that are looked after."),
    Metric("apparate_operator_leading", "gauge", "1 at the replica that acts."),
    Metric("apparate_operator_waiting_models", "gauge", "Models that wait to be looked at."),
    Metric("apparate_operator_reconciles", "counter", "Looks at a model: done, api, unexpected.", ("result",)),
    Metric("apparate_operator_reconcile_seconds", "histogram", "Time of one look at a model.", (), LATENCY_S),
    Metric("apparate_operator_writes", "counter", "Writes to the Kubernetes API, by kind and verb.", ("kind", "verb")),
    Metric(
        "apparate_operator_kubernetes_errors",
        "counter",
        "Calls on the Kubernetes API that failed, by verb and HTTP status; 0: no answer. 404 and 409 are in the normal "
        "course of things.",
        ("verb", "code"),
    ),
    Metric(
        "apparate_model_condition",
        "gauge",
        "The operator's conditions of each model with their reason: 1 True, 0 False. Only at the replica that acts.",
        (*_MODEL, "type", "reason"),
    ),
    Metric("apparate_model_replicas", "gauge", "Workers that each model has.", _MODEL),
    Metric("apparate_model_ready_replicas", "gauge", "Those of them that are ready.", _MODEL),
    Metric("apparate_operator_last_event_timestamp_seconds", "gauge", "When a watch last told of a change.", ("kind",)),
    Metric("apparate_operator_last_resync_timestamp_seconds", "gauge", "When everything was last listed."),
    Metric("apparate_operator_resync_interval_seconds", "gauge", "How often everything is meant to be listed."),
    Metric("apparate_operator_missed_changes", "counter", "Changes that a list found and no watch told.", ("kind",)),
    Metric("apparate_operator_crd_outdated", "gauge", "1 when the installed CRD lacks fields of this version."),
    Metric("apparate_operator_loop_lag_seconds", "gauge", "How late the event loop is."),
)

METRICS: tuple[Metric, ...] = WORKER + CONTROLLER + OPERATOR
