"""The EarlyExitModel document: the same YAML for Kubernetes and for local mode.

Fields are snake_case here and camelCase outside. The typed model is the source; schemas and references are generated.
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from apparate.contract.pods import Gpu, PodTemplate, Resources
from apparate.contract.serving import Autoscaling, Serving
from apparate.contract.shape import DNS_LABEL, Quantity, Ratio, Rule, Shape, Word
from apparate.contract.source import Bootstrap, Credentials, Datatype, ModelSource, TensorSpec
from apparate.contract.status import Catalog, Condition, Delivery, Observed, PlanStatus, RampStatus, Status

__all__ = [
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "Adaptation",
    "Bootstrap",
    "Budget",
    "Catalog",
    "Condition",
    "Credentials",
    "Datatype",
    "Delivery",
    "EarlyExitModel",
    "Gpu",
    "Metadata",
    "ModelSource",
    "Observed",
    "PlanStatus",
    "PodTemplate",
    "PolicyName",
    "Prepare",
    "PvcStorage",
    "RampStatus",
    "Resources",
    "S3Storage",
    "Serving",
    "Spec",
    "Status",
    "Storage",
    "TensorSpec",
]

GROUP, VERSION, KIND, PLURAL = "apparate.dev", "v1alpha1", "EarlyExitModel", "earlyexitmodels"
NAME = "^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
PolicyName = Literal["certified", "sweep", "hill_climb", "never"]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]


class Budget(Shape):
    """What early exits may cost."""

    accuracy_loss: float = Field(
        default=0.01,
        gt=0,
        le=0.5,
        description="Most of the released answers that may disagree with the model's own (0..0.5).",
    )
    ramp_overhead: float = Field(
        default=0.02,
        ge=0,
        le=0.5,
        description="Most time that active ramps may add to a plain pass, as a share (0..0.5).",
    )
    confidence: float = Field(
        default=0.95, gt=0.5, lt=1, description="Probability with which a plan keeps the accuracy budget (0.5..1)."
    )


class Adaptation(Shape):
    """How thresholds and ramps follow the traffic."""

    policy: PolicyName = Field(default="certified", description="How thresholds are chosen; never: the plain model.")
    window: int = Field(default=8192, ge=512, le=1_048_576, description="Feedback records that tuning looks back on.")
    feedback_timeout_seconds: int = Field(
        default=60, ge=5, le=86_400, description="FeedbackFlowing is False when no record came for so long, in seconds."
    )
    paused: bool = Field(default=False, description="Keep the plan as it is; the guard still closes exits.")
    shadow_share: Ratio = Field(
        default=0.25,
        description="Share of batches on which ramps that are switched off are evaluated too, off the request path.",
    )


class Prepare(Shape):
    """The Job that trains and profiles the ramps before a model is served."""

    gpu: Gpu | None = Field(default=None, description="GPUs of the Job; none when it is missing.")
    resources: Resources = Field(default=Resources(), description="Requests and limits of the Job.")
    template: PodTemplate | None = Field(
        default=None, description="What is added to the Job's pod; serving.template when it is missing."
    )
    backoff_limit: int = Field(default=2, ge=0, le=20, description="How often the Job is tried again.")
    active_deadline_seconds: int = Field(
        default=86_400, ge=60, le=2_592_000, description="Longest time of the Job with all its tries, in seconds."
    )


class PvcStorage(Shape):
    """A PersistentVolumeClaim: an existing one by claimName, or one that the operator makes."""

    claim_name: Word | None = Field(default=None, description="An existing claim; the model's own when it is missing.")
    size: Quantity | None = Field(default=None, description="Size of the claim that is made; 10Gi when it is missing.")
    storage_class_name: Word | None = Field(
        default=None, description="StorageClass of the claim that is made; the cluster's default when it is missing."
    )
    access_modes: tuple[AccessMode, ...] = Field(
        default=(),
        max_length=4,
        description="Access modes of the claim that is made, ReadWriteOnce when there are none; workers on several "
        "nodes need ReadWriteMany.",
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.claimName) || !(has(self.size) || has(self.storageClassName) || self.accessModes.size() > 0)",
            "pvc.claimName names an existing claim: size, storageClassName and accessModes are for one that is made",
            lambda pvc: not pvc.claim_name or not (pvc.size or pvc.storage_class_name or pvc.access_modes),
        ),
        Rule(
            "!has(self.size) || !has(oldSelf.size) || "
            "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "pvc.size is {size}: a claim cannot shrink; keep the old size or use another claim",
            None,
        ),
    )


class S3Storage(Shape):
    """A bucket."""

    url: str = Field(
        min_length=1, max_length=2048, pattern="^s3://[^/]+(/.*)?$", description="s3://BUCKET/PREFIX to write below."
    )
    credentials: Credentials | None = Field(default=None, description="The Secret that opens the bucket.")


class Storage(Shape):
    """Where the prepared model is kept."""

    path: str = Field(
        default="prepared",
        min_length=1,
        max_length=2048,
        description="Folder of prepared models, in local mode only; relative to the document.",
    )
    pvc: PvcStorage | None = Field(
        default=None, description="A PersistentVolumeClaim; what is used when there is neither pvc nor s3."
    )
    s3: S3Storage | None = Field(default=None, description="A bucket.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.pvc) && has(self.s3))",
            "storage has both pvc and s3: the prepared model is kept in one place",
            lambda storage: storage.pvc is None or storage.s3 is None,
        ),
    )


class Spec(Shape):
    """What is asked for."""

    model: ModelSource = Field(description="The model itself.")
    bootstrap: Bootstrap = Field(description="Unlabelled data that ramps are first trained on.")
    budget: Budget = Field(default=Budget(), description="What early exits may cost.")
    adaptation: Adaptation = Field(default=Adaptation(), description="How thresholds and ramps follow the traffic.")
    serving: Serving = Field(default=Serving(), description="How the model is served.")
    autoscaling: Autoscaling | None = Field(
        default=None, description="How the number of workers follows the load; serving.replicas when it is missing."
    )
    prepare: Prepare = Field(default=Prepare(), description="The Job that trains and profiles the ramps.")
    storage: Storage = Field(default=Storage(), description="Where the prepared model is kept.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "(self.model.task == 'generation') == has(self.serving.protocols.openai)",
            "task is {model.task}: generation needs serving.protocols.openai, classification has no use for it",
            lambda spec: (spec.model.task == "generation") == (spec.serving.protocols.openai is not None),
        ),
    )


class Metadata(BaseModel):
    """The part of Kubernetes object metadata that is used here."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    name: str = Field(
        pattern=NAME,
        description="Name of the model, in URLs and of everything made for it: at most 40 of a-z, 0-9 and -.",
    )
    namespace: str = Field(default="default", pattern=DNS_LABEL, description="Namespace of the model.")
    uid: str = Field(default="local", description="Set by Kubernetes.")
    generation: int = Field(default=1, description="Set by Kubernetes: rises when the spec changes.")


class EarlyExitModel(Shape):
    """A model that is served with early exits."""

    api_version: Literal["apparate.dev/v1alpha1"] = Field(
        default="apparate.dev/v1alpha1", description="Version of this shape."
    )
    kind: Literal["EarlyExitModel"] = Field(default="EarlyExitModel", description="Kind of the object.")
    metadata: Metadata = Field(description="Name and namespace.")
    spec: Spec = Field(description="What is asked for.")
    status: Status | None = Field(default=None, description="What is there.")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.metadata.name.matches('{NAME}')",
            "metadata.name is {metadata.name}, must be at most 40 of a-z, 0-9 and -, and start with a letter: "
            "what is made for the model is named after it",
            lambda model: bool(re.match(NAME, model.metadata.name)),  # Metadata has looked already
        ),
    )

    @property
    def key(self) -> str:
        """namespace/name/uid: what streams and feedback call this model."""
        return f"{self.metadata.namespace}/{self.metadata.name}/{self.metadata.uid}"
