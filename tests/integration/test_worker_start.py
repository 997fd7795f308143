"""How a worker starts: it takes requests when its model has warmed up, and says why it cannot."""

import asyncio
import re
import socket
import threading
from pathlib import Path

import httpx
import pytest
import torch

from apparate_worker.errors import InvalidSetup
from apparate_worker.served import Declared
from apparate_worker.settings import WorkerSettings
from apparate_worker.worker import Worker
from support.infer import client
from support.models import a_document, a_prepared_model, a_worker, only


@pytest.mark.parametrize(("workers", "answers"), [(0, 500), (4, 300)])
async def test_the_budget_of_a_thousand_answers_is_shared_by_as_many_workers_as_there_are(workers, answers):
    async with a_worker(workers=workers, serving={"replicas": 2}) as (worker, _, _):
        assert only(worker).guard._guard.window.answers == answers  # of the least that a share may be


async def test_a_worker_is_not_ready_before_its_model_has_warmed_up():
    warming, warmed = threading.Event(), threading.Event()

    def hook(k, value):
        warming.set()
        assert warmed.wait(100)

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = WorkerSettings.load({}, document=Path("m.yaml"), http_port=port, grpc_port=0)
    worker = Worker([Declared(a_document(), a_prepared_model(hook=hook))], settings, torch.device("cpu"))
    starting = asyncio.create_task(worker.start())
    try:
        assert await asyncio.to_thread(warming.wait, 60)
        async with client(f"127.0.0.1:{port}") as c:
            with pytest.raises(httpx.TransportError):  # a probe takes that for no
                await c.get("/v2/health/ready", timeout=0.3)
            assert not worker.models.ready()
            warmed.set()
            await starting
            assert (await c.get("/v2/health/ready")).status_code == 200
    finally:
        warmed.set()
        await starting
        await worker.drain(0.0)


async def test_a_model_that_cannot_do_its_largest_batch_never_listens():
    def hook(k, value):
        if len(value) == 8:
            raise RuntimeError("out of memory")

    settings = WorkerSettings.load({}, document=Path("m.yaml"), http_port=0, grpc_port=0)
    worker = Worker(
        [Declared(a_document(serving={"maxBatch": 8}), a_prepared_model(hook=hook))], settings, torch.device("cpu")
    )
    with pytest.raises(InvalidSetup, match=r"the model raises on a batch of 8: .*out of memory"):
        await worker.start()
    assert not worker.models.ready()


@pytest.mark.parametrize("name", ["http_port", "grpc_port"])
async def test_a_port_that_is_taken_is_refused_by_number(name):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = WorkerSettings.load({}, document=Path("m.yaml"), **{"http_port": 0, "grpc_port": 0, name: port})
        worker = Worker([Declared(a_document(), a_prepared_model())], settings, torch.device("cpu"))
        field = f"spec.serving.protocols.{name.removesuffix('_port')}.port"
        with pytest.raises(InvalidSetup, match=rf"port {port}: .*; {re.escape(field)} asks for another"):
            await worker.start()
