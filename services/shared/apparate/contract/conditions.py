"""The conditions of an EarlyExitModel: one sentence and one writer for each, and how one is set."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum

from apparate.contract.status import Condition

OPERATOR = "apparate-operator"
CONTROLLER = "apparate-controller"
"""Field managers of server-side apply; each writes its whole share of the status."""


class ConditionType(StrEnum):
    """What conditions are about. Positive: True is what a user hopes for."""

    PREPARED = "Prepared"
    WORKERS_READY = "WorkersReady"
    PLAN_DELIVERED = "PlanDelivered"
    FEEDBACK_FLOWING = "FeedbackFlowing"
    ACCURACY_MET = "AccuracyMet"
    READY = "Ready"

    @property
    def meaning(self) -> str:
        """When it is True."""
        return _MEANINGS[self][1]

    @property
    def writer(self) -> str:
        """The field manager that writes it."""
        return _MEANINGS[self][0]


_MEANINGS: dict[ConditionType, tuple[str, str]] = {
    ConditionType.PREPARED: (OPERATOR, "Ramps are trained and profiled for this generation's model."),
    ConditionType.WORKERS_READY: (OPERATOR, "As many workers serve as are asked for; the reason is the pods' own."),
    ConditionType.PLAN_DELIVERED: (CONTROLLER, "All live workers run the revision of status.plan."),
    ConditionType.FEEDBACK_FLOWING: (
        CONTROLLER,
        "A record of the current plan came within adaptation.feedbackTimeoutSeconds; Unknown without traffic.",
    ),
    ConditionType.ACCURACY_MET: (CONTROLLER, "The loss is within budget; Unknown while there are too few records."),
    ConditionType.READY: (OPERATOR, "Prepared, workers ready, spec not rejected: the model serves."),
}


class Reason(StrEnum):
    """Why a condition is what it is; the reasons of decisions are in apparate.adaptation.policy.

    Reasons of pods that are not here (a kubelet may have its own) are passed on as they are.
    """

    # Ready, and several of the others
    READY = "Ready"
    REJECTED = "SpecRejected"
    TASK_NOT_SERVED = "TaskNotServed"
    RECONCILE_FAILED = "ReconcileFailed"
    # Prepared
    PREPARED = "Prepared"
    PREPARING = "Preparing"
    PREPARE_FAILED = "PrepareFailed"
    SUPERSEDED = "Superseded"
    SOURCE_NOT_FOUND = "SourceNotFound"
    SOURCE_FORBIDDEN = "SourceForbidden"
    SOURCE_DIFFERS = "SourceDiffers"
    SECRET_NOT_FOUND = "SecretNotFound"
    SECRET_LACKS_KEY = "SecretLacksKey"
    STORAGE_PENDING = "StoragePending"
    STORAGE_FULL = "StorageFull"
    STORAGE_REFUSED = "StorageRefused"
    CATALOG_INVALID = "CatalogInvalid"
    # WorkersReady
    WORKERS_READY = "WorkersReady"
    STARTING = "WorkersStarting"
    SCALED_TO_ZERO = "ScaledToZero"
    CRASH_LOOP = "CrashLoopBackOff"
    OUT_OF_MEMORY = "OOMKilled"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL = "ImagePullBackOff"
    IMAGE_NAME = "InvalidImageName"
    CONTAINER_CONFIG = "CreateContainerConfigError"
    MODEL_LOAD_FAILED = "ModelLoadFailed"
    DEVICE_LOST = "DeviceLost"
    ROLLOUT_BLOCKED = "RolloutBlocked"
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    # PlanDelivered
    DELIVERED = "Delivered"
    DELIVERING = "Delivering"
    PLAN_REFUSED = "PlanRefused"
    NO_WORKERS = "NoWorkers"
    NO_PLAN = "NoPlan"
    # FeedbackFlowing
    FLOWING = "FeedbackFlowing"
    NO_TRAFFIC = "NoTraffic"
    NO_FEEDBACK = "NoFeedback"
    FEEDBACK_REFUSED = "FeedbackRefused"
    REDIS_UNREACHABLE = "RedisUnreachable"
    REDIS_REFUSED = "RedisRefused"
    # AccuracyMet
    WITHIN_BUDGET = "WithinBudget"
    ABOVE_BUDGET = "LossAboveBudget"
    TOO_FEW_RECORDS = "NotEnoughFeedback"


def rfc3339(moment: datetime) -> str:
    """A moment as Kubernetes writes it: UTC, whole seconds. Raises ValueError without a time zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    kind: ConditionType,
    holds: bool | None,
    reason: Reason | str,
    message: str = "",
    *,
    now: datetime,
    generation: int | None = None,
) -> Condition:
    """A condition as it is at `now`; `holds` None is Unknown."""
    status = {True: "True", False: "False", None: "Unknown"}[holds]
    return Condition.model_validate(
        {
            "type": str(kind),
            "status": status,
            "reason": str(reason),
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": rfc3339(now),
        }
    )


def with_condition(conditions: Iterable[Condition], new: Condition, now: datetime) -> tuple[Condition, ...]:
    """`conditions` with `new` in the place of the one of its type; its transition time is `now` only when the status
    changed, else the old one's."""
    kept = {c.type: c for c in conditions}
    old = kept.get(new.type)
    since = old.last_transition_time if old is not None and old.status == new.status else rfc3339(now)
    return tuple((kept | {new.type: new.model_copy(update={"last_transition_time": since})}).values())
