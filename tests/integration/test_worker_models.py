"""Several models in one worker: each answers as itself, and they come, go and are replaced while others are served."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import numpy as np
import pytest
import redis
import torch

from apparate.contract.document import load_documents
from apparate.contract.stream import FIELD, feedback_key
from apparate.contract.wire import decode_feedback
from apparate_proto.inference import open_inference_pb2 as pb
from apparate_worker.model.errors import ModelError
from apparate_worker.repository import Repository
from apparate_worker.served import Declared
from apparate_worker.settings import WorkerSettings
from apparate_worker.worker import Worker
from support.eventually import eventually, eventually_async
from support.infer import client, json_body, message, scores, stub
from support.models import a_document, a_prepared_model, items, write_prepared
from support.processes import a_process


class Shelf:
    """What may be loaded: prepared models in memory, by name; an error in place of one is raised."""

    def __init__(self, **models: Any) -> None:
        self.models = models

    def documents(self) -> list[Any]:
        return [
            a_document(name=name, serving={"maxBatch": 4, "drainSeconds": 10, "stallSeconds": 100})
            for name in self.models
        ]

    def load(self, document: Any, device: torch.device) -> Any:
        found = self.models[document.model.metadata.name]
        if isinstance(found, Exception):
            raise found
        return found


@contextlib.asynccontextmanager
async def serving(shelf: Shelf, *, control: bool = True, redis_url: str = ""):
    """(worker, HTTP address, gRPC address) of a worker for everything on the shelf."""
    settings = WorkerSettings.load({}, document=Path("m.yaml"), http_port=0, grpc_port=0, redis_url=redis_url)
    declared = [Declared(one, shelf.load(one, torch.device("cpu"))) for one in shelf.documents()]
    worker = Worker(declared, settings, torch.device("cpu"))
    declared.clear()
    if control:
        worker.models.control = Repository(worker, settings, shelf.documents, shelf.load)
    http, grpc = await worker.start()
    try:
        yield worker, http, grpc
    finally:
        await worker.drain(0.0)


async def post(c, path, body=None):
    response = await c.post(f"/v2/repository/{path}", json=body or {})
    return response.status_code, response.json()


async def index(c):
    _, found = await post(c, "index")
    return {(one["name"], one["version"]): (one["state"], one["reason"]) for one in found}


def wanted(prepared, x):
    return prepared.model({"x": torch.from_numpy(x)}).numpy()


async def infer(c, name, x):
    response = await c.post(f"/v2/models/{name}/infer", json=json_body(x))
    assert response.status_code == 200, response.text
    return response.json()


async def test_each_of_several_models_answers_as_itself_over_one_pair_of_ports():
    shelf = Shelf(one=a_prepared_model(seed=1), two=a_prepared_model(seed=2, classes=5))
    x = items(3)
    async with serving(shelf) as (_, http, _), client(http) as c:
        for name, prepared in shelf.models.items():
            answer = await infer(c, name, x)
            assert (answer["model_name"], answer["model_version"]) == (name, "1")
            np.testing.assert_allclose(scores(answer), wanted(prepared, x), rtol=1e-4, atol=1e-5)
        assert await index(c) == {("one", "1"): ("READY", ""), ("two", "1"): ("READY", "")}
        metrics = (await c.get("/metrics")).text
        assert metrics.count('apparate_exits_total{model="one"') == metrics.count('apparate_exits_total{model="two"')


async def test_the_server_is_ready_when_the_last_of_its_models_has_warmed_up():
    warming, warmed = threading.Event(), threading.Event()

    def hook(k, value):
        warming.set()
        assert warmed.wait(100)

    settings = WorkerSettings.load({}, document=Path("m.yaml"), http_port=0, grpc_port=0)
    declared = [
        Declared(a_document(name="one"), a_prepared_model()),
        Declared(a_document(name="two"), a_prepared_model(hook=hook)),
    ]
    worker = Worker(declared, settings, torch.device("cpu"))
    starting = asyncio.create_task(worker.start())
    try:
        assert await asyncio.to_thread(warming.wait, 60)
        assert not worker.models.ready()
        warmed.set()
        await starting
        assert worker.models.ready()
    finally:
        warmed.set()
        await starting
        await worker.drain(0.0)


class Traffic:
    """Clients that ask all the time; every answer that is no 200, or comes from no version that there was, is kept."""

    def __init__(self, c, name, shelf):
        self.c, self.name, self.shelf = c, name, shelf
        self.wrong, self.versions, self.answered, self.stopped = [], set(), 0, False
        self.known = [shelf.models[name]]
        self.tasks = [asyncio.create_task(self.ask(seed)) for seed in range(4)]

    async def ask(self, seed):
        x = items(2, seed)
        while not self.stopped:
            response = await self.c.post(f"/v2/models/{self.name}/infer", json=json_body(x))
            if response.status_code != 200:
                self.wrong.append(response.text)
                continue
            answer = response.json()
            self.versions.add(int(answer["model_version"]))
            said = scores(answer)
            if not any(np.allclose(said, wanted(one, x), rtol=1e-4, atol=1e-5) for one in self.known):
                self.wrong.append(answer)
            self.answered += 1

    async def more(self, answers=20):
        aim = self.answered + answers
        await eventually_async(lambda: self.answered >= aim, within=60)

    async def stop(self):
        self.stopped = True
        await asyncio.gather(*self.tasks)


async def test_under_load_versions_are_swapped_and_another_model_comes_and_goes_without_one_error():
    shelf = Shelf(one=a_prepared_model(seed=1), two=a_prepared_model(seed=2))
    async with serving(shelf) as (worker, http, _), client(http) as c:
        one, two = Traffic(c, "one", shelf), Traffic(c, "two", shelf)
        await one.more()
        shelf.models["three"] = a_prepared_model(seed=9)
        for version in range(2, 7):
            shelf.models["one"] = a_prepared_model(seed=10 + version)
            one.known.append(shelf.models["one"])
            assert await post(c, "models/one/load") == (200, {})
            assert (await infer(c, "one", items(1)))["model_version"] == str(version)
            assert await post(c, "models/three/load") == (200, {})
            await infer(c, "three", items(1))
            await one.more()
            assert await post(c, "models/three/unload") == (200, {})
            await two.more()
        await one.stop()
        await two.stop()
        assert (one.wrong, two.wrong) == ([], [])
        assert one.versions == {1, 2, 3, 4, 5, 6}
        assert two.versions == {1}
        assert await index(c) == {
            ("one", "6"): ("READY", ""),
            ("two", "1"): ("READY", ""),
            ("three", "5"): ("UNAVAILABLE", "unloaded"),
        }
        assert worker.models.ready()


async def test_feedback_of_the_version_that_was_replaced_is_sent_to_the_last_request(redis_server):
    shelf = Shelf(one=a_prepared_model(seed=1))
    async with serving(shelf, redis_url=redis_server) as (worker, http, _), client(http) as c:
        key, store = worker.served["one"].document.model.key, redis.Redis.from_url(redis_server)
        asked = 0
        for seed in range(3):
            await asyncio.gather(*(infer(c, "one", items(1)) for _ in range(30)))
            asked += 30
            shelf.models["one"] = a_prepared_model(seed=seed)
            assert (await post(c, "models/one/load"))[0] == 200
        beats = store.keys("*worker*")
    entries = store.xrange(feedback_key(key))
    batches = [decode_feedback(fields[FIELD]) for _, fields in entries]
    assert sum(len(batch.final_labels) for batch in batches) == asked
    assert len({batch.epoch for batch in batches}) == 3
    assert beats


async def test_a_load_that_fails_says_why_and_leaves_what_there_was():
    shelf = Shelf(one=a_prepared_model())
    async with serving(shelf) as (worker, http, _), client(http) as c:
        shelf.models["one"] = ModelError("/models/one/catalog.json cannot be read: it is not JSON")
        status, answer = await post(c, "models/one/load")
        assert status == 400
        assert answer["error"] == f"model 'one' cannot be loaded: {shelf.models['one']}"
        assert (await index(c))["one", "2"] == ("UNAVAILABLE", str(shelf.models["one"]))
        assert (await infer(c, "one", items(1)))["model_version"] == "1"
        assert worker.models.ready()
        shelf.models["one"] = a_prepared_model(seed=2)
        assert (await post(c, "models/one/load"))[0] == 200
        await eventually_async(lambda: list(worker.models.index()) == worker.models.index(ready=True))


async def test_a_new_version_that_raises_when_it_warms_up_never_takes_over():
    def hook(k, value):
        raise RuntimeError("no kernel")

    shelf = Shelf(one=a_prepared_model())
    async with serving(shelf) as (_, http, _), client(http) as c:
        shelf.models["one"] = a_prepared_model(hook=hook)
        status, answer = await post(c, "models/one/load")
        assert (status, "no kernel" in answer["error"]) == (400, True)
        assert (await infer(c, "one", items(1)))["model_version"] == "1"


async def test_unloading_answers_what_was_accepted_and_then_the_model_is_not_known():
    entered, go = threading.Event(), threading.Event()

    def hook(k, value):
        if value.abs().max() > 1e5:
            entered.set()
            assert go.wait(100)

    shelf = Shelf(one=a_prepared_model(hook=hook), two=a_prepared_model())
    async with serving(shelf) as (worker, http, _), client(http) as c:
        slow = asyncio.create_task(infer(c, "one", np.full((1, 16), 1e6, np.float32)))
        assert await asyncio.to_thread(entered.wait, 60)
        leaving = asyncio.create_task(post(c, "models/one/unload"))
        await eventually_async(lambda: worker.models.index()[0].state == "UNLOADING")
        response = await c.post("/v2/models/one/infer", json=json_body(items(1)))
        assert response.status_code == 404
        assert not leaving.done()
        go.set()
        assert (await slow)["model_version"] == "1"
        assert await leaving == (200, {})
        assert (await index(c))["one", "1"] == ("UNAVAILABLE", "unloaded")
        assert 'model="one"' not in (await c.get("/metrics")).text
        assert (await infer(c, "two", items(1)))["model_name"] == "two"
        assert (await post(c, "models/one/unload"))[0] == 404


@pytest.mark.parametrize("change", ["load", "unload"])
async def test_without_the_setting_nobody_changes_what_is_served(change):
    async with serving(Shelf(one=a_prepared_model()), control=False) as (_, http, _), client(http) as c:
        status, answer = await post(c, f"models/one/{change}")
        assert status == 403
        assert "EEM_WORKER_MODEL_CONTROL=explicit would" in answer["error"]
        assert (await infer(c, "one", items(1)))["model_version"] == "1"


async def test_what_no_document_has_cannot_be_loaded_and_a_load_takes_no_parameters():
    async with serving(Shelf(one=a_prepared_model())) as (_, http, _), client(http) as c:
        status, answer = await post(c, "models/other/load")
        assert (status, answer["error"]) == (404, "m.yaml has no model 'other'; there are: one")
        status, answer = await post(c, "models/one/load", {"parameters": {"config": "{}"}})
        assert (status, "'config' is not supported" in answer["error"]) == (400, True)
        assert await post(c, "models/one/unload", {"parameters": {"unload_dependents": False}}) == (200, {})


async def test_the_same_over_grpc():
    shelf = Shelf(one=a_prepared_model())
    async with serving(shelf) as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        service = stub(channel)
        await service.RepositoryModelLoad(pb.RepositoryModelLoadRequest(model_name="one"))
        request = message(items(1))
        request.model_name = "one"
        assert (await service.ModelInfer(request)).model_version == "2"
        await service.RepositoryModelUnload(pb.RepositoryModelUnloadRequest(model_name="one"))
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await service.ModelInfer(request)
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_the_memory_of_a_replaced_version_is_free_although_the_collector_does_not_look_at_it():
    shelf = Shelf(one=a_prepared_model(seed=1))
    gone = weakref.ref(shelf.models["one"].model)
    async with serving(shelf) as (_, http, _), client(http) as c:
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            await infer(c, "one", items(1))
            shelf.models["one"] = a_prepared_model(seed=2)
            assert (await post(c, "models/one/load"))[0] == 200
            await eventually_async(lambda: gone() is None)
        finally:
            gc.enable()
            gc.unfreeze()


def test_a_worker_process_reads_document_and_folder_anew_and_keeps_what_it_has_when_they_are_broken(tmp_path):
    document = write_prepared(tmp_path, serving={"device": "cpu", "maxBatch": 2})
    (folder,) = (one.prepared for one in load_documents(document))
    settings = {"DOCUMENT": str(document), "HTTP_PORT": "0", "GRPC_PORT": "0", "MODEL_CONTROL": "explicit"}
    environ = {f"EEM_WORKER_{name}": value for name, value in settings.items()}
    with a_process([sys.executable, "-m", "apparate_worker"], environ) as process:
        eventually(lambda: process.out or process.popen.poll() is not None, within=60)
        with httpx.Client(base_url=f"http://{json.loads(process.out[0])['http']}", timeout=30) as c:
            document.write_text(document.read_text().replace("maxBatch: 2", "maxBatch: 4"))
            assert c.post("/v2/repository/models/tiny/load").json() == {}
            assert 'apparate_batch_limit_requests{model="tiny",namespace="default"} 4.0' in c.get("/metrics").text
            (folder / "ramps.safetensors").write_bytes(b"half a file")
            answer = c.post("/v2/repository/models/tiny/load")
            assert answer.status_code == 400
            assert "ramps.safetensors" in answer.json()["error"]
            again = c.post("/v2/models/tiny/infer", json=json_body(items(1)))
            assert (again.status_code, again.json()["model_version"]) == (200, "2")
        process.send(signal.SIGTERM)
        assert process.wait(60) == 0
