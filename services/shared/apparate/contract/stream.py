"""Names and limits of everything that lives in Redis.

The model key is in a hash tag, so that all keys of a model are in one slot of a Redis Cluster.
"""

from __future__ import annotations

GROUP = "apparate-controller"
FIELD = b"batch"  # the one field of a feedback entry: an encoded FeedbackBatch
PLAN_FIELD = b"plan"  # the one field of a plan entry: PlanStatus as JSON

FEEDBACK_MAX_ENTRIES = (
    10_000  # 5 minutes at 32 batches/s, longer than a controller failover; a tuning window fits at 1 a batch
)
PLANS_MAX_ENTRIES = 1_000  # history for people and plots; workers read only the newest
KEY_TTL_S = 7 * 24 * 3600  # renewed by the writer; what nobody writes any more goes away by itself
HEARTBEAT_INTERVAL_S = 2.0
HEARTBEAT_TTL_S = 10  # five missed heartbeats: the worker is gone


def feedback_key(model: str) -> str:
    """Stream of encoded FeedbackBatch entries of one model (namespace/name/uid)."""
    return f"apparate:{{{model}}}:feedback"


def plans_key(model: str) -> str:
    """Stream of plans of one model in local mode; the newest entry is in force."""
    return f"apparate:{{{model}}}:plans"


def state_key(model: str) -> str:
    """Hash with the controller's position and counters for one model."""
    return f"apparate:{{{model}}}:state"


def worker_key(model: str, worker: str) -> str:
    """Heartbeat of one worker: JSON with plan revision and in-flight requests, with expiry."""
    return f"apparate:{{{model}}}:worker:{worker}"


def workers_key(model: str) -> str:
    """Set of the names of a model's workers: those that are heard of, and some that are no more."""
    return f"apparate:{{{model}}}:workers"
