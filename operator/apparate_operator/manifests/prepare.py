"""The Job that trains and profiles the ramps of one revision of a model."""

from __future__ import annotations

from apparate.contract.labels import PREPARE, REVISION
from apparate.contract.resource import EarlyExitModel
from apparate_operator.kinds import ATTEMPT, JOB, TEMPLATE, Json
from apparate_operator.manifests.common import PREPARED, Environment, child_name, digest, labels, manifest
from apparate_operator.manifests.pods import env, pod_spec, resources, template_metadata, unique
from apparate_operator.manifests.storage import (
    SOURCES,
    credentials,
    from_secret,
    pull_secrets,
    source_volumes,
    store_mount,
    store_volume,
)

LEAST = {"cpu": "1", "memory": "1Gi"}
KEPT_S = 86_400  # a finished Job and its log stay for a day
USAGE = 2  # the preparation's exit status when trying again cannot help: bad source, bad data, unsupported model
SCRATCH = "scratch"


def catalog_name(model: EarlyExitModel, revision: str) -> str:
    """The ConfigMap that a preparation publishes its catalog in."""
    return child_name(model, f"catalog-{revision}")


def prepare_job(
    model: EarlyExitModel, environment: Environment, *, revision: str, attempt: int, keep: tuple[str, ...] = ()
) -> Json:
    """The Job; `keep` are revisions that workers still use, all others may be removed from the store."""
    asked = model.spec.prepare
    template = asked.template or model.spec.serving.template
    pod = _pod(model, environment, revision)
    marks = {REVISION: revision, ATTEMPT: str(attempt), TEMPLATE: digest(pod)}
    for one in keep:
        pod["containers"][0]["command"].append(f"--keep={one}")
    rules: list[Json] = [
        {"action": "FailJob", "onExitCodes": {"containerName": PREPARE, "operator": "In", "values": [USAGE]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    return manifest(
        JOB,
        model,
        child_name(model, f"prepare-{revision}-{attempt}"),
        PREPARE,
        annotations=marks,
        spec={
            "backoffLimit": asked.backoff_limit,
            "activeDeadlineSeconds": asked.active_deadline_seconds,
            "ttlSecondsAfterFinished": KEPT_S,
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": template_metadata(template, labels(model, PREPARE), marks), "spec": pod},
        },
    )


def template_digest(model: EarlyExitModel, environment: Environment, revision: str) -> str:
    """What the pod of a Job of this revision would be now; a Job that differs is replaced, it cannot be changed."""
    return digest(_pod(model, environment, revision))


def _pod(model: EarlyExitModel, environment: Environment, revision: str) -> Json:
    spec, asked = model.spec, model.spec.prepare
    template = asked.template or spec.serving.template
    volumes, mounts = source_volumes(model)
    container: Json = {
        "name": PREPARE,
        "image": spec.serving.image or environment.worker_image,
        "command": _command(model, revision),
        "env": env(HOME="/tmp", HF_HOME="/scratch/hf", TMPDIR="/scratch"),
        "resources": resources(asked.resources, asked.gpu, LEAST),
        "volumeMounts": [store_mount(read_only=False), {"name": SCRATCH, "mountPath": "/scratch"}, *mounts],
    }
    secrets = [from_secret(prefix, secret) for prefix, secret in credentials(model)]
    if secrets:
        container["envFrom"] = secrets
    pod = pod_spec(model, environment, template, PREPARE, container)
    pod["restartPolicy"] = "Never"
    pod["volumes"] += [store_volume(model, read_only=False), {"name": SCRATCH, "emptyDir": {}}, *volumes]
    pull = unique([*pod.get("imagePullSecrets", []), *pull_secrets(model)])
    return pod | ({"imagePullSecrets": pull} if pull else {})


def _command(model: EarlyExitModel, revision: str) -> list[str]:
    s3 = model.spec.storage.s3
    return [
        "apparate",
        "prepare",
        f"--object={model.metadata.namespace}/{model.metadata.name}",
        f"--revision={revision}",
        f"--store={s3.url if s3 is not None else PREPARED}",
        f"--sources={SOURCES}",
        f"--publish={catalog_name(model, revision)}",
    ]
