"""The controller's HTTP API over real loops on a real Redis, with the session that ships."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from fastapi import FastAPI

from apparate.contract.metrics import CONTROLLER
from apparate.service.redis_client import connect
from apparate.service.telemetry import Telemetry
from apparate.service.tracing import Tracing
from apparate_controller import controls
from apparate_controller.app import create_app
from apparate_controller.loop import ModelLoop
from apparate_controller.models import Models, load_models
from apparate_controller.observe import ModelObserver
from apparate_controller.ports import Ports
from apparate_controller.server import bind, http_server
from apparate_controller.session import ModelSession
from apparate_controller.sinks.redis import RedisPlanSink
from apparate_controller.sources.heartbeats import RedisHeartbeats
from apparate_controller.sources.redis_stream import RedisFeedbackSource
from support.control import a_document, producing
from support.eventually import eventually_async


@dataclass
class Api:
    app: FastAPI
    client: httpx.AsyncClient
    models: Models
    url: str

    async def get(self, path: str) -> httpx.Response:
        return await self.client.get(path)

    async def model(self, name: str = "m") -> dict:
        found = await self.get(f"/v1/models/default/{name}")
        assert found.status_code == 200
        return found.json()


@contextlib.asynccontextmanager
async def an_api(redis_server: str, tmp_path: Path, tracing: Tracing | None = None) -> AsyncIterator[Api]:
    """Models `m`, which is prepared, and `unprepared`."""
    path = a_document(tmp_path, "m", "unprepared")
    (tmp_path / "prepared/default/unprepared/catalog.json").unlink()
    telemetry = Telemetry(CONTROLLER)
    clients = [connect(redis_server, block_s=0.2), connect(redis_server)]

    def new_loop(model, catalog):
        document = model.document
        key = document.model.key
        source = RedisFeedbackSource(*clients, key, consumer="controller", block_s=0.2)
        observer = ModelObserver(telemetry, document.model, catalog, tracing)
        ports = Ports(source, RedisPlanSink(clients[1], key), RedisHeartbeats(clients[1], key), observer)
        return ModelLoop(key, catalog, lambda plan: ModelSession(catalog, model.document.model.spec, plan), ports)

    models = Models(load_models([path]), new_loop, retry_s=0.1)
    running = asyncio.create_task(models.run())
    app = create_app(models, telemetry, stuck_s=30)
    app.include_router(controls.router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://controller") as client:
        await eventually_async(lambda: not models.find("default", "m").problem)
        yield Api(app, client, models, redis_server)
    models.stop()
    await asyncio.wait_for(running, 10)
    for one in clients:
        await one.aclose()


async def fed(api: Api, batches: int, revision: int = 1) -> None:
    with producing(api.url) as producer:
        producer.send(batches, revision=revision)
    await eventually_async(lambda: api.models.find("default", "m").loop.progress.totals.batches == batches)


@contextlib.asynccontextmanager
async def served(app: FastAPI) -> AsyncIterator[str]:
    """Its address."""
    listening = bind("127.0.0.1", 0)
    server = http_server(app)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
