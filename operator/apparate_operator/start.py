"""What must be so before the operator starts: its rights, and the kind of object it looks after."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from apparate.service.kube import KubeError
from apparate.service.telemetry import get_logger
from apparate_operator.cluster import Cluster
from apparate_operator.health import Health
from apparate_operator.kinds import CHILDREN, MODEL, POD, Kind
from apparate_operator.manifests.common import Environment

AGAIN_S = 2.0
log = get_logger(__name__)


def rights(environment: Environment) -> dict[str, tuple[Kind, ...]]:
    """What the operator has to be allowed, by verbs; the chart grants the same."""
    written = tuple(kind for kind in CHILDREN if kind is not POD and environment.has(kind))
    status = Kind(MODEL.api, MODEL.name, f"{MODEL.plural}/status")
    return {"get list watch": (MODEL, POD), "patch": (status,), "get list create patch delete": written}


async def ready_to_start(cluster: Cluster, health: Health, environment: Callable[[], Awaitable[Environment]]) -> None:
    """Wait until everything that is needed is there, and say what is missing: in the log, and in /healthz."""
    told: list[str] = []
    while True:
        try:
            missing = await _missing(cluster, environment)
        except KubeError as error:
            missing = [f"the API server does not answer: {error}"]
        if not missing:
            health.starting = []
            return
        health.starting = missing
        if missing != told:
            log.error("the operator cannot start yet", missing=missing)
            told = missing
        await asyncio.sleep(AGAIN_S)


async def _missing(cluster: Cluster, environment: Callable[[], Awaitable[Environment]]) -> list[str]:
    if not await cluster.serves_models():
        return [
            f"the cluster has no {MODEL.plural} in {MODEL.api}: install the CustomResourceDefinition of this version "
            "(the chart does with crds.install), or upgrade it"
        ]
    return await cluster.lacks(rights(await environment()))
