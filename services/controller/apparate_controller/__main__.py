"""The controller process: settings, adapters, loops and the HTTP API, put together here and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Protocol

from fastapi import FastAPI
from redis.asyncio import Redis

from apparate.catalog import RampCatalog
from apparate.contract.document import Document, InvalidDocument
from apparate.contract.metrics import CONTROLLER
from apparate.service.kube import InvalidKubeconfig, KubeClient, client_of
from apparate.service.redis_client import close, connect
from apparate.service.settings import InvalidSettings
from apparate.service.signals import end_on_sigterm
from apparate.service.telemetry import Telemetry, configure_logging
from apparate.service.tracing import Tracing, tracing
from apparate_controller import controls
from apparate_controller.app import create_app
from apparate_controller.cluster import ClusterController
from apparate_controller.entry import Entry
from apparate_controller.forwarding import pass_on_to_leader
from apparate_controller.loop import ModelLoop
from apparate_controller.models import Model, Models, load_models
from apparate_controller.observe import ModelObserver
from apparate_controller.ports import Ports
from apparate_controller.redis_health import RedisHealth
from apparate_controller.server import bind, http_server
from apparate_controller.session import ModelSession
from apparate_controller.settings import ControllerSettings
from apparate_controller.sinks.redis import RedisPlanSink
from apparate_controller.sources.heartbeats import RedisHeartbeats
from apparate_controller.sources.redis_stream import RedisFeedbackSource


def main() -> int:
    """Run until SIGTERM or SIGINT; 2 when the settings or documents cannot be used, with one line that says why."""
    end_on_sigterm()
    try:
        settings = ControllerSettings.load()
        documents = load_models(settings.documents)
        client = client_of(settings.kubeconfig) if settings.kubernetes else None
        listening = listen(settings)
    except (InvalidSettings, InvalidDocument, InvalidKubeconfig, OSError) as error:
        print(f"apparate-controller: {error}", file=sys.stderr)
        return 2
    configure_logging(settings.log_level, "controller")
    os.nice(settings.niceness)
    with contextlib.closing(listening):
        asyncio.run(run(settings, documents, client, listening))
    return 0


def listen(settings: ControllerSettings) -> socket.socket:
    """The socket of the HTTP API. Raises InvalidSettings when the address cannot be had."""
    try:
        return bind(settings.host, settings.port)
    except OSError as error:
        where = f"EEM_CONTROLLER_HOST {settings.host}, EEM_CONTROLLER_PORT {settings.port}"
        raise InvalidSettings(f"{where}: cannot be listened on: {error.strerror or error}") from None


class Adapting(Protocol):
    """What the process does: the models of files, or of a cluster."""

    async def run(self) -> None:
        """Adapt until `stop`."""

    def stop(self) -> None:
        """Make `run` end soon."""


async def run(
    settings: ControllerSettings, documents: list[Document], client: KubeClient | None, listening: socket.socket
) -> None:
    """Serve and adapt until a signal; every loop finishes what it has in hand first."""
    telemetry = Telemetry(CONTROLLER)
    commands = connect(settings.redis_url)
    async with contextlib.AsyncExitStack() as closing:
        closing.push_async_callback(close, commands)
        traces = tracing("apparate-controller", os.environ)
        if traces is not None:
            closing.push_async_callback(asyncio.to_thread, traces.shutdown)
        if client is not None:
            closing.callback(client.close)
            port = listening.getsockname()[1]
            cluster = ClusterController(settings, client, commands, telemetry, port, traces)
            app = create_app(
                cluster.models,
                telemetry,
                stuck_s=settings.stuck_s,
                standby=cluster.standby,
                refused=cluster.access.problems,
            )
            pass_on_to_leader(app, cluster.standby, cluster.leader, token=settings.api_token)
            await serve(settings, app, cluster, RedisHealth(commands, telemetry).run(), listening)
            return
        readers = {one.model.key: connect(settings.redis_url, block_s=settings.block_s) for one in documents}
        for reader in readers.values():
            closing.push_async_callback(close, reader)
        models = local_models(settings, documents, readers, commands, telemetry, traces)
        telemetry("apparate_leader").set(1)
        app = create_app(models, telemetry, stuck_s=settings.stuck_s)
        app.include_router(controls.router)
        await serve(settings, app, models, RedisHealth(commands, telemetry).run(), listening)


def local_models(
    settings: ControllerSettings,
    documents: list[Document],
    readers: dict[str, Redis],
    commands: Redis,
    telemetry: Telemetry,
    traces: Tracing | None,
) -> Models:
    """The models of local mode: documents in files, plans in Redis."""

    def new_loop(model: Model, catalog: RampCatalog) -> ModelLoop:
        key = model.document.model.key
        source = RedisFeedbackSource(readers[key], commands, key, consumer=settings.name, block_s=settings.block_s)
        observer = ModelObserver(telemetry, model.document.model, catalog, traces)
        ports = Ports(source, RedisPlanSink(commands, key), RedisHeartbeats(commands, key), observer)
        return ModelLoop(key, catalog, lambda plan: ModelSession(catalog, model.document.model.spec, plan), ports)

    return Models(documents, new_loop, settings.retry_s)


async def serve(
    settings: ControllerSettings,
    app: FastAPI,
    adapted: Adapting,
    checks: Coroutine[None, None, None],
    listening: socket.socket,
) -> None:
    """Run the HTTP API and what adapts until a signal, then let both end."""
    if settings.api_token:
        app.add_middleware(Entry, token=settings.api_token)
    server = http_server(app)
    serving = asyncio.create_task(server.serve(sockets=[listening]), name="http")
    adapting = asyncio.create_task(adapted.run(), name="models")
    checking = asyncio.create_task(checks, name="redis")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = listening.getsockname()[:2]
    print(json.dumps({"ready": True, "name": settings.name, "http": f"{host}:{port}"}), flush=True)
    stopped = asyncio.create_task(stop.wait(), name="signal")
    try:
        await asyncio.wait({stopped, serving, adapting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        adapted.stop()
        await adapting
        server.should_exit = True
        await serving
        for task in (checking, stopped):
            task.cancel()
        await asyncio.gather(checking, stopped, return_exceptions=True)


if __name__ == "__main__":
    sys.exit(main())
