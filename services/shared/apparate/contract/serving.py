"""How a model is served: batching, faces, pods, rollout, and how the number of workers follows the load."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from apparate.contract.pods import Gpu, PodTemplate, Resources
from apparate.contract.shape import ListMap, Rule, Shape

ExitParameter = Literal["exit.mode", "exit.max_ramp", "exit.min_confidence", "exit.deadline_ms"]
PORT_0 = "port is 0: any free port is for local mode; here it must be 1..65535"


class Slo(Shape):
    """Latency objective."""

    latency_ms: float = Field(gt=0, le=3_600_000, description="Answers are wanted within this many milliseconds.")
    target: float = Field(
        default=0.99,
        ge=0.5,
        lt=1,
        description="Share of answers wanted within it; alerts tell when what is left of the rest burns too fast.",
    )


class HttpProtocol(Shape):
    """Open Inference Protocol over HTTP."""

    port: int = Field(default=8080, ge=0, le=65535, description="TCP port; 0 picks a free one, in local mode only.")
    max_body_bytes: int = Field(
        default=64 * 2**20, ge=1024, le=2**31 - 1, description="Largest request body, in bytes; above it 413."
    )
    rules: ClassVar[tuple[Rule, ...]] = (Rule("self.port != 0", PORT_0, None),)


class GrpcProtocol(Shape):
    """Open Inference Protocol over gRPC."""

    port: int = Field(default=9000, ge=0, le=65535, description="TCP port; 0 picks a free one, in local mode only.")
    max_message_bytes: int = Field(
        default=64 * 2**20, ge=1024, le=2**31 - 1, description="Largest message, in bytes; above it RESOURCE_EXHAUSTED."
    )
    rules: ClassVar[tuple[Rule, ...]] = (Rule("self.port != 0", PORT_0, None),)


class OpenAiProtocol(Shape):
    """OpenAI-compatible completions on the HTTP port, for the task generation."""

    max_tokens: int = Field(default=1024, ge=1, le=1_048_576, description="Most new tokens of one answer.")


class Protocols(Shape):
    """The faces a worker shows."""

    http: HttpProtocol = Field(default=HttpProtocol(), description="HTTP face.")
    grpc: GrpcProtocol = Field(default=GrpcProtocol(), description="gRPC face.")
    openai: OpenAiProtocol | None = Field(
        default=None, description="OpenAI-compatible face; wanted by, and only for, the task generation."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.http.port != self.grpc.port || self.http.port == 0",
            "http.port and grpc.port are both {http.port}, must differ",
            lambda faces: faces.http.port != faces.grpc.port or faces.http.port == 0,
        ),
    )


class Compact(Shape):
    """How the mode compact keeps the accuracy budget, of which it cannot see most answers."""

    full_share: float = Field(
        default=0.1,
        ge=0.01,
        le=1,
        description="Probability with which a batch is run to the end all the same, so that its early answers are "
        "checked (0.01..1). Less saves more, and takes longer to notice that answers have become worse: about "
        "1 / fullShare times as long as the mode report.",
    )


class Batching(Shape):
    """Which requests share a pass, and who gives way when more comes than can be served."""

    policy: Literal["sizeAge", "aimd", "deadline"] = Field(
        default="sizeAge",
        description="sizeAge: a batch leaves when it is full or its oldest request has waited maxDelayMs. aimd: the "
        "same, and the largest batch, up to maxBatch, has passes of at most three quarters of slo.latencyMs. "
        "deadline: a request that would not be answered within its timeout, or slo.latencyMs if that is less, is "
        "refused at once with 429 and Retry-After.",
    )
    default_priority: int = Field(
        default=1,
        ge=1,
        le=2,
        description="Priority of requests without the parameter priority. 1 is the high class; 2 (and more, in "
        "requests) the low one, which goes last and is refused first.",
    )
    low_queue_share: float = Field(
        default=0.5, ge=0, le=1, description="Share of maxQueue that the low class may fill (0..1), at least one item."
    )


class ResponseCache(Shape):
    """Answers that are given again to the same input. Only the model's own are kept, so accuracy is not touched."""

    max_bytes: int = Field(
        default=64 * 2**20, ge=1024, le=2**34, description="Most memory of each worker's cache, in bytes."
    )
    ttl_seconds: float = Field(
        default=300.0, gt=0, le=86_400, description="Longest time that an answer is given again, in seconds."
    )


class Rollout(Shape):
    """How workers are replaced when the model, the image or the pods change. Plans never restart a worker."""

    strategy: Literal["auto", "surge", "recreate"] = Field(
        default="auto",
        description="surge: a new worker first, then an old one goes. recreate: old ones first, for GPUs that have no "
        "spare. auto: one old worker first when the workers ask for GPUs, else surge.",
    )


class Serving(Shape):
    """How the model is served."""

    replicas: int = Field(
        default=1, ge=0, le=1000, description="Number of workers; with autoscaling only where it starts."
    )
    mode: Literal["report", "compact"] = Field(
        default="report",
        description="report: an answer leaves at its ramp, the batch is computed to the end, throughput is unchanged, "
        "and every early answer is checked: budget.accuracyLoss holds for certain, also of any 1,000 answers in a row. "
        "compact: answered rows are not computed further, which saves compute. Only batches drawn at random "
        "(compact.fullShare) are checked, so budget.accuracyLoss holds for all answers of a worker since its start "
        "with probability budget.confidence, and 1,000 answers in a row may hold more.",
    )
    compact: Compact = Field(default=Compact(), description="For the mode compact.")
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
    batching: Batching = Field(default=Batching(), description="Batching policy and classes of requests.")
    timeout_ms: float = Field(
        default=30_000, gt=0, le=3_600_000, description="Longest wait in the queue, in milliseconds; above it 504."
    )
    threads: int = Field(default=1, ge=1, le=256, description="CPU threads of one pass.")
    device: str = Field(
        default="auto",
        max_length=16,
        pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        description="auto takes a GPU when there is one.",
    )
    backend: Literal["auto", "eager", "compile", "onnx"] = Field(
        default="auto",
        description="What runs the model's segments: eager (torch, bit for bit as it is), compile (torch.compile ahead "
        "of time, needs a C++ compiler while preparing), onnx (ONNX Runtime, on a CPU). auto: the fastest of those "
        "there are that answers as eager does.",
    )
    drain_seconds: float = Field(
        default=30.0, ge=0, le=3600, description="Longest time to finish accepted requests after SIGTERM, in seconds."
    )
    stall_seconds: float | None = Field(
        default=None,
        ge=1,
        le=3600,
        description="A worker whose pass does not go on for so long, in seconds, is replaced: it has lost its device. "
        "When missing: 4 seconds, or ten times the slowest profiled pass if that is longer.",
    )
    load_timeout_seconds: int = Field(
        default=600, ge=10, le=86_400, description="Longest time a worker may take from start to ready, in seconds."
    )
    client_exits: tuple[ExitParameter, ...] = Field(
        default=get_args(ExitParameter),
        max_length=4,
        description="Which parameters about its own early exit a request may have. They can only make it stricter than "
        "the plan, so none can spend the accuracy budget; a parameter that is not listed gets 400.",
    )
    response_cache: ResponseCache | None = Field(
        default=None, description="Answers that are given again to the same input; none when it is missing."
    )
    slo: Slo | None = Field(default=None, description="Latency objective, for dashboards and batching.")
    protocols: Protocols = Field(default=Protocols(), description="The faces a worker shows.")
    image: str | None = Field(
        default=None,
        min_length=1,
        max_length=512,
        description="Image of the workers and of the prepare Job; the operator's own when it is missing.",
    )
    gpu: Gpu | None = Field(default=None, description="GPUs of each worker; none when it is missing.")
    resources: Resources = Field(default=Resources(), description="Requests and limits of each worker.")
    template: PodTemplate = Field(default=PodTemplate(), description="What is added to the worker pods.")
    rollout: Rollout = Field(default=Rollout(), description="How workers are replaced.")

    @property
    def checked_share(self) -> float:
        """Least probability with which a batch is run to the end, so that its early answers are checked."""
        return self.compact.full_share if self.mode == "compact" else 1.0

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.device != 'cpu' || !has(self.gpu)",
            "serving.device is cpu and serving.gpu asks for a GPU: leave one of them out",
            lambda serving: serving.device != "cpu" or serving.gpu is None,
        ),
        Rule(
            "self.batching.policy != 'aimd' || has(self.slo)",
            "serving.batching.policy is aimd, which keeps passes within serving.slo.latencyMs: set that too",
            lambda serving: serving.batching.policy != "aimd" or serving.slo is not None,
        ),
    )


class Target(Shape):
    """A load of one worker that the number of workers is kept for."""

    metric: Literal["cpu", "waiting", "inFlight"] = Field(
        description="cpu: used share of the requested CPU. waiting: requests that wait for a pass "
        "(apparate_waiting_requests). inFlight: requests accepted and not answered (apparate_in_flight_requests)."
    )
    value: float = Field(
        gt=0, le=1_000_000, description="Wanted average of a worker: a share for cpu, else a number of requests."
    )


class Autoscaling(Shape):
    """How the number of workers follows the load. Without this part serving.replicas is what runs."""

    kind: Literal["hpa", "keda"] = Field(
        default="hpa",
        description="hpa: a HorizontalPodAutoscaler; other metrics than cpu need a custom metrics adapter. keda: a "
        "ScaledObject; needs KEDA.",
    )
    min_replicas: int = Field(default=1, ge=0, le=1000, description="Fewest workers; 0 only with keda.")
    max_replicas: int = Field(ge=1, le=1000, description="Most workers.")
    targets: Annotated[tuple[Target, ...], ListMap("metric")] = Field(
        default=(Target(metric="cpu", value=0.7),), min_length=1, max_length=3, description="What the load is kept at."
    )
    prometheus_address: str | None = Field(
        default=None,
        max_length=2048,
        pattern=r"^https?://.+",
        description="URL of Prometheus, for keda with other metrics than cpu.",
    )
    scale_down_stabilization_seconds: int = Field(
        default=300, ge=0, le=3600, description="How long a lower load must last before workers go, in seconds."
    )
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.minReplicas <= self.maxReplicas",
            "minReplicas is {minReplicas}, must not be above maxReplicas, which is {maxReplicas}",
            lambda scaling: scaling.min_replicas <= scaling.max_replicas,
        ),
        Rule(
            "self.minReplicas > 0 || self.kind == 'keda'",
            "minReplicas is 0: only kind keda can scale to zero",
            lambda scaling: scaling.min_replicas > 0 or scaling.kind == "keda",
        ),
        Rule(
            "self.kind != 'keda' || has(self.prometheusAddress) || self.targets.all(t, t.metric == 'cpu')",
            "kind keda needs prometheusAddress for other metrics than cpu",
            lambda scaling: (
                scaling.kind != "keda"
                or scaling.prometheus_address is not None
                or all(target.metric == "cpu" for target in scaling.targets)
            ),
        ),
    )
