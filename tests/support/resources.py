"""EarlyExitModel objects and what is said of them, for the API server and for local mode alike."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

MINIMAL: dict[str, Any] = {
    "apiVersion": "apparate.dev/v1alpha1",
    "kind": "EarlyExitModel",
    "metadata": {"name": "tiny"},
    "spec": {
        "model": {
            "source": "pvc://models/tiny.safetensors",
            "entrypoint": "tiny.model:load",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [4]}],
        },
        "bootstrap": {"data": "pvc://models/inputs.npz"},
    },
}
DROP = object()


def an_object(**changes: Any) -> dict[str, Any]:
    """MINIMAL with values set by dotted path, `spec__serving__replicas=2`; DROP removes a field."""
    made = copy.deepcopy(MINIMAL)
    for path, value in changes.items():
        *parents, last = path.split("__")
        at = made
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        if value is DROP:
            at.pop(last)
        else:
            at[last] = copy.deepcopy(value)
    return made


@dataclass(frozen=True)
class Case:
    """A change of MINIMAL; `refusal` is what is said of it, None when it is taken."""

    changes: dict[str, Any]
    refusal: str | None = None
    local: str | None = ""
    """What local mode says when it differs; None when it takes what a cluster refuses."""

    @property
    def document(self) -> dict[str, Any]:
        """The whole object."""
        return an_object(**self.changes)

    @property
    def local_refusal(self) -> str | None:
        """What local mode says of it."""
        return self.refusal if self.local == "" else self.local


def _model(**changes: Any) -> dict[str, Any]:
    return {f"spec__model__{name}": value for name, value in changes.items()}


def _serving(**changes: Any) -> dict[str, Any]:
    return {f"spec__serving__{name}": value for name, value in changes.items()}


HPA = {"maxReplicas": 4}
MIG = "nvidia.com/mig-1g.10gb"
TWICE = "Duplicate value"

RULES: dict[str, Case] = {
    "unknown scheme": Case(_model(source="ftp://host/w"), "source is ftp://host/w, must be file:///PATH, pvc://"),
    "s3 without a key": Case(_model(source="s3://bucket"), "source is s3://bucket, must be"),
    "relative path": Case(
        _model(source="weights.bin"), "source is weights.bin: a relative path is for local mode", None
    ),
    "relative file url": Case(_model(source="file:w"), "source is file:w: a relative path is for local mode", None),
    "file url of another host": Case(
        _model(source="file://host/w"), "source is file://host/w: a relative path is for local mode", None
    ),
    "unknown scheme of data": Case(
        {"spec__bootstrap__data": "gs://b/d.npz"}, "data is gs://b/d.npz, must be file:///PATH"
    ),
    "relative data": Case({"spec__bootstrap__data": "d.npz"}, "data is d.npz: a relative path is for local mode", None),
    "torch without entrypoint": Case(_model(entrypoint=DROP), "format torch needs an entrypoint (package.module:"),
    "dimension of zero": Case(
        _model(inputs=[{"name": "x", "datatype": "FP32", "shape": [3, 0]}]), "dimension is 0, must be positive, or -1"
    ),
    "generation without its face": Case(_model(task="generation"), "task is generation: generation needs serving.prot"),
    "classification with that face": Case(
        _serving(protocols={"openai": {}}), "task is classification: generation needs serving.protocols.openai"
    ),
    "long name": Case(
        {"metadata__name": "a" * 41},
        f"metadata.name is {'a' * 41}, must be at most 40 of a-z",
        "should match pattern",
    ),
    "name with a dot": Case({"metadata__name": "a.b"}, "metadata.name is a.b, must be", "should match pattern"),
    "min above max": Case(
        {"spec__autoscaling": {"minReplicas": 5, "maxReplicas": 4}},
        "minReplicas is 5, must not be above maxReplicas, which is 4",
    ),
    "hpa to zero": Case(
        {"spec__autoscaling": HPA | {"minReplicas": 0}}, "minReplicas is 0: only kind keda can scale to zero"
    ),
    "keda without prometheus": Case(
        {"spec__autoscaling": HPA | {"kind": "keda", "targets": [{"metric": "waiting", "value": 4}]}},
        "kind keda needs prometheusAddress for other metrics than cpu",
    ),
    "two mig devices": Case(
        _serving(gpu={"count": 2, "migProfile": "1g.10gb"}), "gpu.count is 2: a container can use only one MIG device"
    ),
    "two mig devices by name": Case(
        _serving(gpu={"count": 2, "resourceName": MIG}), "gpu.count is 2: a container can use only one MIG device"
    ),
    "mig named twice": Case(
        _serving(gpu={"migProfile": "1g.10gb", "resourceName": MIG}), f"gpu.resourceName is {MIG} and migProfile is set"
    ),
    "two mig devices in limits": Case(
        _serving(resources={"limits": {MIG: 2}}), "limits ask for more than one MIG device: a container can use only"
    ),
    "two kinds of mig device in limits": Case(
        {"spec__prepare__resources": {"limits": {MIG: "1", "nvidia.com/mig-2g.20gb": 1}}},
        "limits ask for more than one MIG device",
    ),
    "gpu and device cpu": Case(
        _serving(device="cpu", gpu={}), "serving.device is cpu and serving.gpu asks for a GPU: leave one of them out"
    ),
    "aimd without an objective": Case(
        _serving(batching={"policy": "aimd"}),
        "serving.batching.policy is aimd, which keeps passes within serving.slo.latencyMs: set that too",
    ),
    "two faces on a port": Case(
        _serving(protocols={"http": {"port": 9000}}), "http.port and grpc.port are both 9000, must differ"
    ),
    "any free http port": Case(
        _serving(protocols={"http": {"port": 0}}), "port is 0: any free port is for local", None
    ),
    "any free grpc port": Case(
        _serving(protocols={"grpc": {"port": 0}}), "port is 0: any free port is for local", None
    ),
    "env with two values": Case(
        _serving(template={"env": [{"name": "A", "value": "1", "valueFrom": {"fieldRef": {"fieldPath": "m"}}}]}),
        "env A has both value and valueFrom: give one of them",
    ),
    "two stores": Case(
        {"spec__storage": {"pvc": {}, "s3": {"url": "s3://b/p"}}}, "storage has both pvc and s3: the prepared model is"
    ),
    "size of an existing claim": Case(
        {"spec__storage": {"pvc": {"claimName": "c", "size": "1Gi"}}},
        "pvc.claimName names an existing claim: size, storageClassName and accessModes are for one that is made",
    ),
}
"""Each CEL rule at least once, with what a user reads."""

LIMITS: dict[str, Case] = {
    "loss of zero": Case(
        {"spec__budget__accuracyLoss": 0}, "should be greater than 0", "spec.budget.accuracyLoss is 0: Input should be"
    ),
    "loss above a half": Case(
        {"spec__budget__accuracyLoss": 0.51}, "should be less than or equal to 0.5", "less than or equal to 0.5"
    ),
    "negative overhead": Case(
        {"spec__budget__rampOverhead": -0.1}, "should be greater than or equal to 0", "greater than or equal to 0"
    ),
    "overhead above a half": Case({"spec__budget__rampOverhead": 0.6}, "should be less than or equal to 0.5"),
    "confidence of one": Case({"spec__budget__confidence": 1}, "should be less than 1"),
    "slo of zero": Case(_serving(slo={"latencyMs": 0}), "should be greater than 0"),
    "negative replicas": Case(_serving(replicas=-1), "should be greater than or equal to 0"),
    "unknown policy": Case({"spec__adaptation__policy": "best"}, "best", "spec.adaptation.policy is 'best'"),
    "unknown metric": Case(
        {"spec__autoscaling": HPA | {"targets": [{"metric": "gpu", "value": 1}]}}, '"gpu"', "targets.0.metric is 'gpu'"
    ),
    "no source": Case(_model(source=DROP), "spec.model.source: Required value", "spec.model.source is missing"),
    "no spec": Case({"spec": DROP}, "spec: Required value", "spec is missing"),
    "an input twice": Case(_model(inputs=[{"name": "x", "datatype": "FP32"}] * 2), TWICE, "name x is there twice"),
    "an env twice": Case(_serving(template={"env": [{"name": "A"}, {"name": "A"}]}), TWICE, "name A is there twice"),
    "an unknown field": Case({"spec__bugdet": {}}, 'unknown field "spec.bugdet"', "spec.bugdet is not a field"),
    "snake case": Case({"spec__serving__max_batch": 4}, 'unknown field "spec.serving.max_batch"', "is not a field"),
    "text for a number": Case(_serving(replicas="2"), "must be of type integer", "valid integer"),
    "a number for text": Case(_model(output=1), "must be of type string", "valid string"),
    "a share for a whole number": Case(_serving(replicas=1.5), "must be of type integer", "valid integer"),
    "text for true": Case({"spec__adaptation__paused": "true"}, "must be of type boolean", "valid boolean"),
    "a bad quantity": Case(_serving(resources={"limits": {"cpu": "two"}}), "should match", "should match"),
    "a negative quantity": Case(_serving(resources={"limits": {"cpu": -1}}), "greater than or equal to 0", "match"),
    "a share of a quantity": Case(
        _serving(resources={"limits": {"cpu": 0.5}}), "must be of type integer,string", "valid string"
    ),
    "seventeen inputs": Case(
        _model(inputs=[{"name": f"x{i}", "datatype": "FP32"} for i in range(17)]), "must have at most 16 items", "16"
    ),
}
"""Limits of single fields, which need no rule."""

TAKEN: dict[str, Case] = {
    "minimal": Case({}),
    "file": Case(_model(source="file:///models/w")),
    "file url with one slash": Case(_model(source="file:/models/w")),
    "plain absolute path": Case(_model(source="/models/w")),
    "s3": Case(_model(source="s3://bucket/w", sha256="0" * 64, credentials={"secretName": "aws"})),
    "hugging face": Case(_model(source="hf://owner/name@main", format="huggingface", entrypoint=DROP)),
    "oci": Case(_model(source="oci://registry.example/name:1")),
    "generation with its face": Case(_model(task="generation") | _serving(protocols={"openai": {}})),
    "loss of a half": Case({"spec__budget__accuracyLoss": 0.5}),
    "whole number for a share": Case({"spec__budget__rampOverhead": 0}),
    "a whole number as 4.0": Case(_serving(maxBatch=4.0)),
    "one mig device": Case(_serving(gpu={"migProfile": "1g.10gb"}, resources={"limits": {"cpu": 2, MIG: "1"}})),
    "two gpus": Case(_serving(gpu={"count": 2})),
    "keda to zero": Case(
        {
            "spec__autoscaling": HPA
            | {
                "kind": "keda",
                "minReplicas": 0,
                "prometheusAddress": "http://prometheus:9090",
                "targets": [{"metric": "waiting", "value": 4}, {"metric": "cpu", "value": 0.5}],
            }
        }
    ),
    "null as if missing": Case(_model(sha256=None) | {"spec__budget": None}),
    "pod template": Case(
        _serving(
            template={
                "labels": {"team": "vision"},
                "nodeSelector": {"gpu": "h200"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}},
                "runtimeClassName": "nvidia",
                "priorityClassName": "high",
                "imagePullSecrets": [{"name": "registry"}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}}],
                "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "securityContext": {"pod": {"fsGroup": 1000}, "container": {"runAsUser": 1000}},
            }
        )
    ),
    "storage": Case(
        {"spec__storage": {"pvc": {"size": "20Gi", "storageClassName": "fast", "accessModes": ["ReadWriteMany"]}}}
    ),
}
"""What is taken by both."""

STATUS: dict[str, Any] = {
    "observedGeneration": 3,
    "replicas": 2,
    "readyReplicas": 1,
    "selector": "apparate.dev/model=tiny",
    "catalog": {
        "digest": "7f3a",
        "ramps": [{"ramp": 0, "layer": "block1"}, {"ramp": 1, "layer": "block2"}],
        "maxActiveRamps": 2,
        "configMap": "tiny-catalog-7f3a",
    },
    "plan": {
        "revision": 4,
        "reason": "ThresholdsTuned",
        "message": "2 ramps open",
        "decidedAt": "2026-11-30T10:00:00.123Z",
        "catalog": "7f3a",
        "activeRamps": 1,
        "ramps": [{"ramp": 1, "layer": "block2", "threshold": 0.30000001192092896}],
    },
    "history": [{"revision": 3, "reason": "Started", "catalog": "7f3a", "activeRamps": 0, "ramps": []}],
    "observed": {
        "accuracyLoss": {"value": 0.0031, "upper": 0.0078, "samples": 8192},
        "latencySavedRatio": 0.41,
        "exitRate": 0.82,
        "ramps": [{"ramp": 1, "exitRate": 0.82, "agreement": 0.997, "savedMs": 3.25}],
    },
    "delivery": {"revision": 4, "workers": 2, "updatedWorkers": 1},
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Ready",
            "message": "2 workers serve",
            "observedGeneration": 3,
            "lastTransitionTime": "2026-11-30T10:00:00Z",
        }
    ],
}
"""A status with every field."""

STATUS_REFUSED: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("plan", "ramps", 0, "threshold"), 1.5, "should be less than or equal to 1"),
    (("plan", "ramps", 0, "threshold"), -0.5, "should be greater than or equal to 0"),
    (("plan", "ramps", 0, "ramp"), -1, "should be greater than or equal to 0"),
    (("plan", "revision"), -1, "should be greater than or equal to 0"),
    (("plan", "revision"), 10**12 + 1, "revision is 1000000000001, must be at most 1000000000000: a plan that is put"),
    (("conditions", 0, "status"), "Maybe", "Unsupported value"),
    (("conditions", 0, "reason"), "two words", "should match"),
    (("conditions", 0, "lastTransitionTime"), "yesterday", "date-time"),
    (("observed", "exitRate"), 82, "should be less than or equal to 1"),
]
"""What no status may have: where in STATUS, the value, and what is said of it."""

SHRUNK = ("12Gi", "11Gi", "pvc.size is 11Gi: a claim cannot shrink; keep the old size or use another claim")
"""A size of the claim, one that it may not be changed to, and what is said of it."""
