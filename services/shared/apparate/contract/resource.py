"""The EarlyExitModel document: the same YAML for Kubernetes and for local mode.

Fields are snake_case here and camelCase outside. The typed model is the source; schemas and references are generated.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from apparate.plan import Plan, RampSetting

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "BF16",
    "BYTES",
]
PolicyName = Literal["certified", "sweep", "hill_climb", "never"]
Ratio = Annotated[float, Field(ge=0, le=1)]


class _Shape(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, protected_namespaces=()
    )


class TensorSpec(_Shape):
    """One input of the model, without its batch dimension."""

    name: str = Field(min_length=1, max_length=128, description="Name of the argument of the model's forward.")
    datatype: Datatype = Field(description="Open Inference Protocol datatype.")
    shape: tuple[int, ...] = Field(
        default=(), max_length=8, description="Shape of one item without the batch dimension; -1 where it varies."
    )
    max_size: int = Field(
        default=4096, ge=1, le=1_048_576, description="Largest size allowed in a dimension that varies."
    )
    pad: float = Field(
        default=0.0, description="Value that fills up shorter items of a batch in a dimension that varies."
    )

    @field_validator("shape")
    @classmethod
    def _dimensions(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        for size in shape:
            if size < 1 and size != -1:
                raise ValueError(f"dimension is {size}, must be positive, or -1 where it varies")
        return shape


class ModelSource(_Shape):
    """Where the model comes from and how it is called."""

    source: str = Field(
        min_length=1,
        max_length=2048,
        description="file:// URL or path of the weights or of a Hugging Face folder; relative to the document.",
    )
    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="Expected SHA-256 of the source file; refused when it differs.",
    )
    format: Literal["torch", "huggingface"] = Field(
        default="torch", description="torch: an nn.Module from the entrypoint; huggingface: a folder with config.json."
    )
    entrypoint: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="package.module:function that takes the source's path and returns an nn.Module.",
    )
    task: Literal["classification"] = Field(default="classification", description="What the model's output means.")
    inputs: tuple[TensorSpec, ...] = Field(
        default=(), max_length=16, description="The model's inputs, in the order of its forward."
    )
    output: str = Field(default="logits", max_length=128, description="Name of the output tensor: class scores.")
    classes: tuple[str, ...] = Field(default=(), max_length=10_000, description="Names of the classes, for people.")

    @model_validator(mode="after")
    def _callable(self) -> ModelSource:
        if self.format == "torch" and self.entrypoint is None:
            raise ValueError("format torch needs an entrypoint (package.module:function)")
        names = [t.name for t in self.inputs]
        if len(set(names)) != len(names):
            raise ValueError(f"inputs are {names}, names must differ")
        return self


class Bootstrap(_Shape):
    """Unlabelled data that ramps are first trained on."""

    data: str = Field(
        min_length=1,
        max_length=2048,
        description="file:// URL or path of an .npz with one array [N, ...] for each input; relative to the document.",
    )
    epochs: int = Field(default=30, ge=1, le=1000, description="Most passes over the data; training stops early.")
    max_records: int = Field(default=20_000, ge=64, le=10_000_000, description="Most records read from the data.")


class Budget(_Shape):
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


class Adaptation(_Shape):
    """How thresholds and ramps follow the traffic."""

    policy: PolicyName = Field(default="certified", description="How thresholds are chosen; never: the plain model.")
    window: int = Field(default=8192, ge=512, le=1_048_576, description="Feedback records that tuning looks back on.")
    paused: bool = Field(default=False, description="Keep the plan as it is; the guard still closes exits.")
    shadow_share: Ratio = Field(
        default=0.25,
        description="Share of batches on which ramps that are switched off are evaluated too, off the request path.",
    )


class Slo(_Shape):
    """Latency objective."""

    latency_ms: float = Field(gt=0, le=3_600_000, description="Answers are wanted within this many milliseconds.")


class HttpProtocol(_Shape):
    """Open Inference Protocol over HTTP."""

    port: int = Field(default=8080, ge=0, le=65535, description="TCP port; 0 picks a free one.")
    max_body_bytes: int = Field(
        default=64 * 2**20, ge=1024, le=2**31 - 1, description="Largest request body, in bytes; above it 413."
    )


class GrpcProtocol(_Shape):
    """Open Inference Protocol over gRPC."""

    port: int = Field(default=9000, ge=0, le=65535, description="TCP port; 0 picks a free one.")
    max_message_bytes: int = Field(
        default=64 * 2**20, ge=1024, le=2**31 - 1, description="Largest message, in bytes; above it RESOURCE_EXHAUSTED."
    )


class Protocols(_Shape):
    """The faces a worker shows."""

    http: HttpProtocol = Field(default=HttpProtocol(), description="HTTP face.")
    grpc: GrpcProtocol = Field(default=GrpcProtocol(), description="gRPC face.")


class Serving(_Shape):
    """How the model is served."""

    replicas: int = Field(default=1, ge=0, le=1000, description="Number of workers.")
    max_batch: int = Field(
        default=8, ge=1, le=64, description="Most requests in one pass; also the largest profiled size."
    )
    max_delay_ms: float = Field(
        default=0.0,
        ge=0,
        le=10_000,
        description="Longest wait of the oldest request for more to batch with, in milliseconds; 0: never wait.",
    )
    max_queue: int = Field(default=1024, ge=1, le=1_000_000, description="Most waiting requests; above it 429.")
    timeout_ms: float = Field(
        default=30_000, gt=0, le=3_600_000, description="Longest wait in the queue, in milliseconds; above it 504."
    )
    threads: int = Field(default=1, ge=1, le=256, description="CPU threads of one pass.")
    device: str = Field(
        default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto takes a GPU when there is one."
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, le=3600, description="Longest time to finish accepted requests after SIGTERM, in seconds."
    )
    slo: Slo | None = Field(default=None, description="Latency objective, for dashboards and batching.")
    protocols: Protocols = Field(default=Protocols(), description="The faces a worker shows.")


class Storage(_Shape):
    """Where the prepared model is kept."""

    path: str = Field(
        default="prepared",
        min_length=1,
        max_length=2048,
        description="Folder of prepared models; relative to the document.",
    )


class Spec(_Shape):
    """What is asked for."""

    model: ModelSource = Field(description="The model itself.")
    bootstrap: Bootstrap = Field(description="Unlabelled data that ramps are first trained on.")
    budget: Budget = Field(default=Budget(), description="What early exits may cost.")
    adaptation: Adaptation = Field(default=Adaptation(), description="How thresholds and ramps follow the traffic.")
    serving: Serving = Field(default=Serving(), description="How the model is served.")
    storage: Storage = Field(default=Storage(), description="Where the prepared model is kept.")


class Metadata(BaseModel):
    """The part of Kubernetes object metadata that is used here."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    uid: str = "local"
    generation: int = 1


class RampStatus(_Shape):
    """One active ramp as the status shows it."""

    ramp: int = Field(ge=0, description="Index in the catalog.")
    layer: str = Field(default="", description="Name of the layer the ramp reads.")
    threshold: float = Field(ge=0, le=1, description="Requests with an error score below it exit here; 0 is closed.")


class PlanStatus(_Shape):
    """The plan in force, as status and local mode carry it."""

    revision: int = Field(ge=0)
    reason: str = ""
    message: str = ""
    decided_at: str = ""
    catalog: str = ""
    ramps: tuple[RampStatus, ...] = ()

    @classmethod
    def of(
        cls, plan: Plan, layers: tuple[str, ...] = (), *, reason: str = "", message: str = "", decided_at: str = ""
    ) -> PlanStatus:
        """The status shape of a core plan; `layers` are the catalog's names."""
        ramps = tuple(
            RampStatus(ramp=s.ramp, layer=layers[s.ramp] if s.ramp < len(layers) else "", threshold=s.threshold)
            for s in plan.ramps
        )
        return cls(
            revision=plan.revision,
            reason=reason,
            message=message,
            decided_at=decided_at,
            catalog=plan.catalog,
            ramps=ramps,
        )

    def to_plan(self) -> Plan:
        """The core plan. Raises InvalidPlan."""
        return Plan(self.revision, tuple(RampSetting(r.ramp, r.threshold) for r in self.ramps), self.catalog)


class EarlyExitModel(BaseModel):
    """A model that is served with early exits."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)

    api_version: Literal["apparate.dev/v1alpha1"] = "apparate.dev/v1alpha1"
    kind: Literal["EarlyExitModel"] = "EarlyExitModel"
    metadata: Metadata
    spec: Spec
    status: dict[str, Any] | None = None

    @property
    def key(self) -> str:
        """namespace/name/uid: what streams and feedback call this model."""
        return f"{self.metadata.namespace}/{self.metadata.name}/{self.metadata.uid}"
