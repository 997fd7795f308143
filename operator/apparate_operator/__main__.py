"""The operator process: settings, client, servers, watches and work, put together here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any, cast

import kopf

from apparate.contract.metrics import OPERATOR
from apparate.service.kube import InvalidKubeconfig, KubeClient, from_kubeconfig, in_cluster
from apparate.service.settings import InvalidSettings
from apparate.service.signals import end_on_sigterm
from apparate.service.telemetry import Telemetry, configure_logging, get_logger
from apparate.service.tracing import tracing
from apparate_operator import handlers
from apparate_operator.health import Health, serve
from apparate_operator.memory import few_heaps
from apparate_operator.operator import Operator
from apparate_operator.settings import OperatorSettings
from apparate_operator.start import last_word, ready_to_start

STOPPED, USAGE = 1, 2  # exit status: could not go on; exit status: cannot start as asked
KOPF_STOPS_S = 10.0
log = get_logger(__name__)


def main() -> int:
    """Run until SIGTERM or SIGINT; 2 with one line that says why when it cannot start as asked."""
    end_on_sigterm()
    try:
        settings = OperatorSettings.load()
        client = client_of(settings)
    except (InvalidSettings, InvalidKubeconfig) as error:
        print(f"apparate-operator: {error}", file=sys.stderr)
        return USAGE
    configure_logging(settings.log_level, "operator")
    few_heaps()
    if settings.kubeconfig:
        os.environ["KUBECONFIG"] = settings.kubeconfig  # kopf's own reader looks there
    with contextlib.closing(client):
        try:
            return asyncio.run(run(settings, client))
        except OSError as error:
            print(f"apparate-operator: EEM_OPERATOR_HEALTH_PORT {settings.health_port}: {error}", file=sys.stderr)
            return USAGE


def client_of(settings: OperatorSettings) -> KubeClient:
    """The pod's own identity, or outside of a pod that of a kubeconfig. Raises InvalidKubeconfig."""
    if settings.kubeconfig:
        return from_kubeconfig(settings.kubeconfig)[0]
    try:
        return in_cluster()
    except InvalidKubeconfig:
        return from_kubeconfig()[0]


async def run(settings: OperatorSettings, client: KubeClient) -> int:
    """Serve health from the start, wait for what is needed, then watch and, as the leader, work; the exit status."""
    telemetry, health = Telemetry(OPERATOR), Health()
    traces = tracing("apparate-operator", os.environ)
    operator = Operator(settings, client, telemetry, health, traces)
    server, port = await serve(health, telemetry.render, settings.host, settings.health_port)
    print(json.dumps({"name": settings.name, "health": port}), flush=True)
    try:
        await ready_to_start(operator.cluster, health, operator.environment)
        failure = await work(operator, settings)
        if failure is None:
            return 0
        log.error("watching or working failed", exc_info=failure)
        log.error("the operator stops", why=await last_word(operator.cluster, operator.environment, failure))
        return STOPPED
    finally:
        operator.close()
        await server.cleanup()
        if traces is not None:
            await asyncio.to_thread(traces.shutdown)


async def work(operator: Operator, settings: OperatorSettings) -> Exception | None:
    """Watch and work until a signal comes, which kopf takes, or something fails: that failure."""
    leading = asyncio.create_task(operator.run(), name="operator")
    rights = asyncio.create_task(operator.watch_rights(), name="rights")
    watching = asyncio.create_task(
        kopf.operator(
            registry=kopf.get_default_registry(),
            settings=handlers.kopf_settings(settings),
            memo=kopf.Memo(operator=operator),
            standalone=True,
            identity=cast(Any, settings.name),  # or it asks for the user's name, which a user of an image may not have
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
        ),
        name="kopf",
    )
    tasks = (leading, watching, rights)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if leading.cancelled():  # kopf was told to stop and has begun with us
            await asyncio.wait({watching}, timeout=KOPF_STOPS_S)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    return next((one for one in results if isinstance(one, Exception)), None)


if __name__ == "__main__":
    sys.exit(main())
