"""Models, and what belongs to them, as the operator sees them: builders that say only what matters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from apparate.catalog import RampCatalog
from apparate.contract.labels import REVISION
from apparate.contract.resource import EarlyExitModel
from apparate.contract.revision import revision
from apparate_operator.kinds import CONFIG_MAP, DEPLOYMENT, JOB, POD, Json, Kind
from apparate_operator.lifecycle import Step, next_step
from apparate_operator.manifests.common import Environment, labels, owner
from apparate_operator.manifests.prepare import catalog_name
from apparate_operator.observed import observe
from apparate_operator.store import Store

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
ENVIRONMENT = Environment("worker:1", redis_url="redis://redis:6379/0")
UID = "11111111-2222-3333-4444-555555555555"


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """`old` with the fields of `new`, deeply."""
    return {**old} | {
        k: merge(old[k], v) if isinstance(v, dict) and isinstance(old.get(k), dict) else v for k, v in new.items()
    }


def a_body(name: str = "resnet", namespace: str = "shop", **spec: Any) -> Json:
    """An EarlyExitModel as a user writes it; `spec` is merged over a small one."""
    small = {
        "model": {
            "source": "pvc://models/resnet.safetensors",
            "entrypoint": "nets:load",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 32, 32]}],
        },
        "bootstrap": {"data": "pvc://models/data.npz"},
    }
    return {
        "apiVersion": "apparate.dev/v1alpha1",
        "kind": "EarlyExitModel",
        "metadata": {"name": name, "namespace": namespace},
        "spec": merge(small, spec),
    }


def a_model(generation: int = 1, status: Json | None = None, **spec: Any) -> EarlyExitModel:
    """The same as the operator reads it."""
    body = a_body(**spec)
    body["metadata"] |= {"uid": UID, "generation": generation}
    return EarlyExitModel.model_validate(body | ({"status": status} if status else {}))


def a_catalog(ramps: int = 3) -> RampCatalog:
    """A catalog of some ramps, each of which costs a hundredth of a pass."""
    return RampCatalog(
        batch_sizes=(1, 8),
        reach_ms=[[1.0 + r for r in range(ramps)]] * 2,
        overhead_ms=[[0.1] * ramps] * 2,
        full_ms=[10.0, 10.0],
        layers=tuple(f"layer{r}" for r in range(ramps)),
    )


def catalog_body(model: EarlyExitModel, *, catalog: RampCatalog | None = None, progress: Json | None = None) -> Json:
    """The ConfigMap that a preparation of the model publishes."""
    wanted = revision(model.spec)
    data = {}
    if progress is not None:
        data["progress.json"] = json.dumps(progress)
    if catalog is not None:
        data["catalog.json"] = json.dumps(catalog.to_json())
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": catalog_name(model, wanted),
            "namespace": model.metadata.namespace,
            "labels": labels(model, "prepare"),
            "annotations": {REVISION: wanted},
            "ownerReferences": [owner(model)],
        },
        "data": data,
    }


class World:
    """What a cluster would make of steps: everything applied is there, with a uid and a version."""

    def __init__(self) -> None:
        self.store = Store()
        self._version = 0

    def put(self, kind: Kind, body: Json) -> None:
        """An object is there, or changed."""
        self._version += 1
        meta = {"uid": f"{kind.name}-{body['metadata']['name']}", "generation": 1, **body["metadata"]}
        meta["resourceVersion"] = str(self._version)
        self.store.put(kind, body | {"metadata": meta})

    def step(self, model: EarlyExitModel, environment: Environment = ENVIRONMENT, now: datetime = NOW) -> Step:
        """The next step for a model in this world, without doing it."""
        return next_step(model, observe(self.store.of(model.metadata.uid)), environment, now)

    def do(self, model: EarlyExitModel, environment: Environment = ENVIRONMENT, now: datetime = NOW) -> Step:
        """The next step, done."""
        step = self.step(model, environment, now)
        for one in step.applies:
            if one.manager == "apparate-operator":
                self.put(one.kind, one.body)
        for kind, name in step.deletions:
            body = self.store.of(model.metadata.uid)[kind, name]
            self.store.drop(kind, body)
        return step

    def job_fails(
        self,
        model: EarlyExitModel,
        at: str = "2026-11-30T12:00:00Z",
        message: str = "too often",
        reason: str = "BackoffLimitExceeded",
    ) -> None:
        """The newest Job of the model failed."""
        job = self.newest(model, JOB)
        failed = {"type": "Failed", "status": "True", "reason": reason, "message": message}
        self.put(JOB, job | {"status": {"conditions": [failed | {"lastTransitionTime": at}]}})

    def publish(self, model: EarlyExitModel, ramps: int = 3) -> None:
        """The preparation of the model has published its catalog."""
        self.put(CONFIG_MAP, catalog_body(model, catalog=a_catalog(ramps)))

    def workers(self, model: EarlyExitModel, *, ready: int, wanted: int = 1, **status: Any) -> None:
        """The Deployment has so many ready workers."""
        found = self.newest(model, DEPLOYMENT)
        counts = {"replicas": wanted, "readyReplicas": ready, "updatedReplicas": wanted, "observedGeneration": 1}
        self.put(DEPLOYMENT, found | {"spec": {"replicas": wanted}, "status": counts | status})

    def pod(self, model: EarlyExitModel, name: str, component: str = "worker", **status: Any) -> None:
        """A pod of the model."""
        marks = {REVISION: revision(model.spec), "apparate.dev/attempt": "1"}
        meta = {
            "name": name,
            "namespace": model.metadata.namespace,
            "labels": labels(model, component),
            "annotations": marks,
        }
        self.put(POD, {"metadata": meta, "status": status})

    def newest(self, model: EarlyExitModel, kind: Kind) -> Json:
        """The one of a kind that was put last."""
        found = [body for (of, _), body in self.store.of(model.metadata.uid).items() if of is kind]
        return max(found, key=lambda body: int(body["metadata"]["resourceVersion"]))


def serving(model: EarlyExitModel, environment: Environment = ENVIRONMENT) -> World:
    """A world in which the model is prepared and its worker ready."""
    world = World()
    world.do(model, environment)
    world.publish(model)
    world.do(model, environment)
    world.workers(model, ready=model.spec.serving.replicas, wanted=model.spec.serving.replicas)
    return world


def conditions(step: Step) -> dict[str, tuple[str, str, str]]:
    """(status, reason, message) of each condition by type."""
    return {c["type"]: (c["status"], c["reason"], c["message"]) for c in step.status["conditions"]}


def applied(step: Step, kind: Kind) -> list[Json]:
    """Manifests of a kind in a step."""
    return [one.body for one in step.applies if one.kind is kind]
