"""What must be so before the operator starts: its rights, and the kind of object it looks after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from apparate.service.kube import FORBIDDEN, UNAUTHORIZED, KubeError
from apparate.service.telemetry import get_logger
from apparate_operator.cluster import Cluster
from apparate_operator.health import Health
from apparate_operator.kinds import CHILDREN, MODEL, POD, Kind
from apparate_operator.manifests.common import Environment

AGAIN_S = 2.0
GRANTED_BY = (
    "the chart grants it with rbac.create: a ClusterRole, or a Role in each of `namespaces`, bound to the operator's "
    "ServiceAccount"
)
log = get_logger(__name__)


def rights(environment: Environment) -> dict[str, tuple[Kind, ...]]:
    """What the operator has to be allowed, by verbs; the chart grants the same."""
    asked = replace(environment, tends_secrets=False)  # that works without
    written = tuple(kind for kind in CHILDREN if kind is not POD and asked.has(kind))
    status = Kind(MODEL.api, MODEL.name, f"{MODEL.plural}/status")
    return {"get list watch": (MODEL, POD), "patch": (status,), "get list create patch delete": written}


async def ready_to_start(cluster: Cluster, health: Health, environment: Callable[[], Awaitable[Environment]]) -> None:
    """Wait until everything that is needed is there, and say what is missing: in the log, and in /healthz."""
    told: list[str] = []
    while True:
        try:
            missing = await lacking(cluster, environment)
        except KubeError as error:
            missing = [unanswered(error)]
        if not missing:
            health.starting = []
            return
        health.starting = missing
        if missing != told:
            log.error("the operator cannot start yet", missing=missing)
            told = missing
        await asyncio.sleep(AGAIN_S)


async def lacking(cluster: Cluster, environment: Callable[[], Awaitable[Environment]]) -> list[str]:
    """What the operator needs of the cluster and has not, in sentences. Raises KubeError."""
    if not await cluster.serves(MODEL):
        return [
            f"the cluster has no {MODEL.plural} in {MODEL.api}: install the CustomResourceDefinition of this version "
            "(the chart does with crds.install), or upgrade it"
        ]
    return [f"the operator {one}: {GRANTED_BY}" for one in await cluster.lacks(rights(await environment()))]


def unanswered(error: KubeError) -> str:
    """What it means that not even the rights could be asked for."""
    if error.status == UNAUTHORIZED:
        return (
            f"the API server refused the operator's credentials: {error}; its token has expired or its ServiceAccount "
            "is gone: restart the pod, or give EEM_OPERATOR_KUBECONFIG a kubeconfig that is valid"
        )
    if error.status == FORBIDDEN:
        return f"the API server does not let the operator ask what it may: {error}"
    return f"the API server does not answer: {error}"


async def last_word(cluster: Cluster, environment: Callable[[], Awaitable[Environment]], failure: Exception) -> str:
    """Why the operator stops though nobody told it to: what it lacks now, else the failure itself."""
    try:
        missing = await lacking(cluster, environment)
    except KubeError as error:
        missing = [unanswered(error)]
    return "; ".join(missing) or f"a watch or the work failed: {failure!r}"
