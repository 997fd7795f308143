"""What worker and prepare pods have in common: rights, users, GPUs, and the user's additions to the template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apparate.contract.pods import Gpu, PodTemplate, Resources
from apparate.contract.resource import EarlyExitModel
from apparate_operator.kinds import Json
from apparate_operator.manifests.common import Environment, child_name

GROUP_ID = 10001  # of volumes, so that a user that is not root can write to them; OpenShift has a range of its own
TMP = "tmp"


def pod_spec(
    model: EarlyExitModel, environment: Environment, template: PodTemplate, component: str, container: Json
) -> Json:
    """A pod of one container that satisfies the Pod Security Standard `restricted`, with the user's additions."""
    context: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if not environment.openshift:
        context |= {"fsGroup": GROUP_ID, "fsGroupChangePolicy": "OnRootMismatch"}
    spec: Json = {
        "serviceAccountName": child_name(model, component),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,  # a Service called like a setting would overwrite it
        "securityContext": context | (template.security_context.pod or {}),
        "containers": [hardened(container, template)],
        "volumes": [{"name": TMP, "emptyDir": {}}],
    }
    optional = {
        "nodeSelector": template.node_selector,
        "tolerations": [dump(one) for one in template.tolerations],
        "affinity": template.affinity,
        "runtimeClassName": template.runtime_class_name,
        "priorityClassName": template.priority_class_name,
        "imagePullSecrets": [dump(one) for one in template.image_pull_secrets],
    }
    spec |= {name: value for name, value in optional.items() if value}
    spec["volumes"] += [dump(one) for one in template.volumes]
    return spec


def hardened(container: Json, template: PodTemplate) -> Json:
    """A container without rights, with a read-only root and a /tmp, and the user's variables and mounts."""
    context = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    named = {one.name: dump(one) for one in template.env}  # the user's win: that is what overrides are for
    env = [one for one in container.get("env", []) if one["name"] not in named] + list(named.values())
    mounts = [{"name": TMP, "mountPath": "/tmp"}, *container.get("volumeMounts", [])]
    return container | {
        "env": env,
        "volumeMounts": mounts + [dump(one) for one in template.volume_mounts],
        "securityContext": context | (template.security_context.container or {}),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def template_metadata(template: PodTemplate, labels: dict[str, str], annotations: dict[str, str]) -> Json:
    """Labels and annotations of a pod; the operator's own win."""
    return {"labels": template.labels | labels, "annotations": template.annotations | annotations}


def resources(asked: Resources, gpu: Gpu | None, least: dict[str, str]) -> Json:
    """Requests and limits, with the GPUs as a limit; `least` is requested of what the user names nowhere.

    CUDA_VISIBLE_DEVICES is never set: the device plugin does that, and a MIG device breaks by it.
    """
    requests = {name: amount for name, amount in least.items() if name not in asked.limits} | asked.requests
    limits = asked.limits | (gpu.amounts() if gpu is not None else {})
    found: Json = {"requests": requests} if requests else {}
    return found | ({"limits": limits} if limits else {})


def env(**values: str) -> list[Json]:
    """Variables of a container."""
    return [{"name": name, "value": value} for name, value in values.items()]


def field(name: str, path: str) -> Json:
    """A variable that has a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def dump(shape: Any) -> Json:
    """A part of the spec as Kubernetes wants it."""
    found: Json = shape.model_dump(by_alias=True, exclude_none=True, mode="json")
    return found


def unique(items: Sequence[Json]) -> list[Json]:
    """Items that differ, in their order."""
    return [one for i, one in enumerate(items) if one not in items[:i]]
