"""The workers of a model: Deployment, with what its pods need to start, to be asked how they are, and to stop."""

from __future__ import annotations

import math

from apparate.contract.conditions import OPERATOR
from apparate.contract.labels import PREFIX, REVISION, WORKER
from apparate.contract.resource import EarlyExitModel
from apparate_operator.kinds import DEPLOYMENT, Json
from apparate_operator.manifests import redis
from apparate_operator.manifests.common import Environment, child_name, digest, labels, manifest, selector
from apparate_operator.manifests.pods import env, field, hardened, pod_spec, resources, template_metadata
from apparate_operator.manifests.storage import (
    KEPT_IN,
    from_secret,
    kept_in,
    prepared_folder,
    prepared_url,
    store_mount,
    store_volume,
)

LEAST = {"cpu": "1", "memory": "1Gi"}
SETTINGS = f"{PREFIX}/settings"
"""Annotation with the hash of the settings that a worker reads once, at its start."""
SCALED_BY = f"{PREFIX}/scaled-by"
"""Annotation of who sets the number of workers: the operator or an autoscaler."""
STARTUP_PERIOD_S = 5
PRE_STOP_S = 5  # load balancers and kube-proxies take about so long to hear that a pod stops
SPARE_S = 10  # feedback leaves and the process ends after draining


def deployment(model: EarlyExitModel, environment: Environment, *, revision: str, replicas: int | None) -> Json:
    """The Deployment that serves one prepared revision; without `replicas` an autoscaler sets their number.

    The pod template depends on nothing that a running worker can follow by itself: budget, adaptation, replicas.
    """
    serving = model.spec.serving
    marks = {REVISION: revision, SETTINGS: _settings_digest(model), **redis.marks(environment)}
    spec: Json = {
        "selector": {"matchLabels": selector(model, WORKER)},
        "strategy": strategy(model),
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": serving.load_timeout_seconds + 120,
        "template": {
            "metadata": template_metadata(serving.template, labels(model, WORKER), marks),
            "spec": _pod(model, environment, revision),
        },
    }
    if replicas is not None:
        spec["replicas"] = replicas
    told = {REVISION: revision, SCALED_BY: OPERATOR if replicas is not None else "autoscaler", KEPT_IN: kept_in(model)}
    return manifest(DEPLOYMENT, model, child_name(model, WORKER), WORKER, annotations=told, spec=spec)


def strategy(model: EarlyExitModel) -> Json:
    """How pods are replaced. Where each GPU is taken, a new pod cannot start before an old one has left."""
    serving = model.spec.serving
    wanted = serving.rollout.strategy
    if wanted == "recreate":
        return {"type": "Recreate"}
    scarce = wanted == "auto" and serving.gpu is not None
    surge, unavailable = (0, 1) if scarce else (1, 0)
    return {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}


def _settings_digest(model: EarlyExitModel) -> str:
    """What a worker reads once; a change of it restarts the workers, one after the other."""
    watched = {"replicas", "slo", "mode", "compact"}
    others = {"rollout", "template", "resources", "gpu", "image", "load_timeout_seconds"}
    read_at_start = model.spec.serving.model_dump(mode="json", exclude_defaults=True, exclude=watched | others)
    return digest(read_at_start)


def _pod(model: EarlyExitModel, environment: Environment, revision: str) -> Json:
    serving = model.spec.serving
    http = serving.protocols.http.port
    image = serving.image or environment.worker_image
    container: Json = {
        "name": WORKER,
        "image": image,
        "command": ["python", "-m", "apparate_worker"],
        "env": [
            *env(
                EEM_WORKER_OBJECT=f"{model.metadata.namespace}/{model.metadata.name}",
                EEM_WORKER_PREPARED=prepared_folder(model, revision),
                EEM_WORKER_HOST="0.0.0.0",
                HOME="/tmp",
            ),
            field("EEM_WORKER_NAME", "metadata.name"),
            *redis.variables(model, environment),
        ],
        "ports": [
            {"name": "http", "containerPort": http},
            {"name": "grpc", "containerPort": serving.protocols.grpc.port},
        ],
        "resources": resources(serving.resources, serving.gpu, LEAST),
        "volumeMounts": [store_mount(read_only=True)],
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        **_probes(serving.load_timeout_seconds),
    }
    if environment.redis_secret:
        container["volumeMounts"].append({"name": "redis", "mountPath": "/etc/apparate/redis", "readOnly": True})
    pod = pod_spec(model, environment, serving.template, WORKER, container)
    pod["volumes"].append(store_volume(model, read_only=True))
    if environment.redis_secret:
        ca = {"secretName": environment.redis_secret, "items": [{"key": "ca.crt", "path": "ca.crt"}], "optional": True}
        pod["volumes"].append({"name": "redis", "secret": ca})
    s3 = model.spec.storage.s3
    if s3 is not None:
        pod["initContainers"] = [_fetch(model, image, revision)]
    pod["terminationGracePeriodSeconds"] = PRE_STOP_S + math.ceil(serving.drain_seconds) + SPARE_S
    pod["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector(model, WORKER)},
        }
    ]
    return pod


def _probes(load_timeout_s: int) -> Json:
    """Started: the model is loaded and warm. Live: the loop and the device turn. Ready: it takes requests."""
    return {
        "startupProbe": {
            "httpGet": {"path": "/v2/health/ready", "port": "http"},
            "periodSeconds": STARTUP_PERIOD_S,
            "timeoutSeconds": 3,
            "failureThreshold": math.ceil(load_timeout_s / STARTUP_PERIOD_S),
        },
        "livenessProbe": {
            "httpGet": {"path": "/v2/health/live", "port": "http"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
        "readinessProbe": {
            "httpGet": {"path": "/v2/health/ready", "port": "http"},
            "periodSeconds": 5,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
    }


def _fetch(model: EarlyExitModel, image: str, revision: str) -> Json:
    """Copies the prepared model from S3 before the worker starts."""
    url, folder = prepared_url(model, revision), prepared_folder(model, revision)
    container: Json = {
        "name": "fetch",
        "image": image,
        "command": ["python", "-m", "apparate_worker.prepare.fetch", url, folder],
        "env": env(HOME="/tmp"),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [store_mount(read_only=False)],
    }
    s3 = model.spec.storage.s3
    if s3 is not None and s3.credentials is not None:
        container["envFrom"] = [from_secret("STORE_", s3.credentials)]
    return hardened(container, model.spec.serving.template)
