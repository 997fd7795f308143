"""From workers through Redis to the controller: what is sent, what is lost on the way, how far behind reading is."""

from __future__ import annotations

from boards.shared import BY_MODEL, FIRING, MODELS, NAME, NAMESPACES, rate
from panels import MODEL, Board, Panel, Query, Row

WAY = (
    Panel(
        "Sent and read",
        "Batches of feedback per second that Redis took from workers, and that the controller has read.",
        "ops",
        (
            Query(f"sum({rate('apparate_feedback_sent_total', MODEL)})", "sent"),
            Query(f"sum({rate('apparate_feedback_batches_total', MODEL)})", "read"),
        ),
    ),
    Panel(
        "Given up by workers",
        "Batches per second that workers dropped, because Redis is gone, full, or slower than they. Answers are not "
        "touched by it.",
        "ops",
        (Query(f"{BY_MODEL}({rate('apparate_feedback_dropped_total', MODEL)})", NAME),),
    ),
    Panel(
        "Gaps and repeats",
        "Batches per second: lost, numbers of a worker that never came; late, that came after all; repeated, that came "
        "twice and count once.",
        "ops",
        (
            Query(f"sum({rate('apparate_feedback_lost_total', MODEL)})", "lost"),
            Query(f"sum({rate('apparate_feedback_late_total', MODEL)})", "late"),
            Query(f"sum({rate('apparate_feedback_duplicates_total', MODEL)})", "repeated"),
        ),
    ),
    Panel(
        "Refused by the controller",
        "Entries per second that could not be used. catalog: of workers that have other ramps, passes with a rollout; "
        "failed: a fault of the controller.",
        "ops",
        (Query(f"sum by (cause)({rate('apparate_feedback_refused_total', MODEL)})", "{{cause}}"),),
    ),
    Panel(
        "Behind",
        "Entries not yet read, by model.",
        "none",
        (Query(f"max by (namespace, model)(apparate_feedback_lag_entries{{{MODEL}}})", NAME),),
    ),
    Panel(
        "Age of what is read",
        "How old the newest entry was when it was worked off, by the clocks of Redis and controller.",
        "s",
        (Query(f"max by (namespace, model)(apparate_feedback_age_seconds{{{MODEL}}})", NAME),),
    ),
    Panel(
        "Records",
        "Answers per second that the controller has learned of.",
        "reqps",
        (Query(f"{BY_MODEL}({rate('apparate_feedback_records_total', MODEL)})", NAME),),
    ),
    Panel(
        "Window",
        "Records that decisions are made on, by model. It fills up to adaptation.window.",
        "none",
        (Query(f"max by (namespace, model)(apparate_window_records{{{MODEL}}})", NAME),),
    ),
    Panel(
        "Stream",
        "Entries in the stream, and read ones that are not acknowledged yet.",
        "none",
        (
            Query(f"max by (namespace, model)(apparate_feedback_stream_entries{{{MODEL}}})", f"{NAME} in the stream"),
            Query(f"max by (namespace, model)(apparate_feedback_pending_entries{{{MODEL}}})", f"{NAME} pending"),
        ),
    ),
)
REDIS = (
    Panel(
        "Redis answers",
        "1 when Redis answered when a controller last looked. Answers of models do not wait for it.",
        "none",
        (Query("min(apparate_redis_up)"),),
        kind="stat",
        width=4,
        decimals=0,
    ),
    Panel(
        "May evict",
        "1 when maxmemory-policy lets Redis throw streams away.",
        "none",
        (Query("max(apparate_redis_eviction_risk)"),),
        kind="stat",
        width=4,
        limits=(1.0,),
        decimals=0,
    ),
    Panel(
        "Certificate ends in",
        "Until the certificate ends that Redis shows over TLS; nothing without TLS.",
        "s",
        (Query("min(apparate_redis_certificate_expiry_timestamp_seconds > 0) - time()"),),
        kind="stat",
        width=4,
    ),
    Panel(
        "Memory of Redis",
        "Used, and the most it may use (maxmemory); above it writes are refused and feedback is dropped.",
        "bytes",
        (
            Query("max(apparate_redis_used_memory_bytes)", "used"),
            Query("max(apparate_redis_memory_limit_bytes > 0)", "most"),
        ),
        width=6,
    ),
    Panel(
        "Time to answer",
        "How long Redis took to answer PING from a controller.",
        "s",
        (Query("max(apparate_redis_answer_seconds)", "PING"),),
        width=6,
    ),
)
BOARD = Board(
    "feedback",
    "Feedback path",
    "What workers send, what is lost on the way, and how far behind reading is. None of it holds up answers.",
    (Row("From worker to controller", WAY), Row("Redis", REDIS)),
    (NAMESPACES, MODELS),
    (FIRING,),
)
