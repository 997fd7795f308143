"""A worker that follows its own EarlyExitModel, with the rights of its pod and no more."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
import redis
import torch

from apparate.contract.document import Document
from apparate.contract.resource import EarlyExitModel, TensorSpec
from apparate.contract.stream import worker_key
from apparate.plan import Plan
from apparate.service.kube import KubeError, model_path, models_path
from apparate_worker.errors import InvalidSetup
from apparate_worker.model.store import load_prepared
from apparate_worker.objects import as_prepared, check_is_object, read_object
from apparate_worker.served import Declared
from apparate_worker.settings import WorkerSettings
from apparate_worker.worker import Worker
from support.eventually import eventually_async
from support.infer import ask, client
from support.models import a_document, a_prepared_model, filled, items, only, write_prepared
from support.objects import Objects, a_client
from support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.cluster


@pytest.fixture
def objects(control_plane, namespace, crd):
    found = Objects(control_plane, namespace)
    found.create("tiny")
    return found


@contextlib.asynccontextmanager
async def a_worker(objects: Objects, kubeconfig: Path, redis_url: str = ""):
    """A worker in this process, as a pod would start it."""
    settings = WorkerSettings.load(
        {},
        object=f"{objects.namespace}/tiny",
        kubeconfig=str(kubeconfig),
        http_port=0,
        grpc_port=0,
        name="w1",
        redis_url=redis_url,
    )
    reading = a_client(objects.cluster, kubeconfig)
    document = await asyncio.to_thread(read_object, reading, settings.object)  # a proxy may be in this loop
    reading.close()
    worker = Worker([Declared(document, a_prepared_model())], settings, torch.device("cpu"))
    http, _ = await worker.start()
    try:
        yield worker, http
    finally:
        await worker.drain(0.0)


async def in_force(worker, revision, within=10):
    await eventually_async(lambda: only(worker).keeper.plan.revision == revision, within)


def a_plan(revision, ramps=(0,), catalog="tiny"):
    return Plan.of(revision, ramps, [0.5] * len(ramps), catalog)


async def test_a_plan_in_the_status_is_in_force_and_so_is_one_put_there_by_hand(objects):
    objects.put_plan(a_plan(3), "tiny")
    async with a_worker(objects, objects.reader_of("tiny")) as (worker, http), client(http) as c:
        await in_force(worker, 3)
        objects.put_plan(a_plan(9, (1, 2)), "tiny")
        await in_force(worker, 9)
        assert (await ask(c, items(1)))["parameters"]["plan_revision"] == 9


async def test_its_rights_end_at_its_own_object(objects):
    objects.create("other")
    own = a_client(objects.cluster, objects.reader_of("tiny"))
    with contextlib.closing(own):
        for path in (model_path(objects.namespace, "other"), models_path(objects.namespace)):
            with pytest.raises(KubeError) as refused:
                own.call("GET", path)
            assert refused.value.status == 403


@pytest.mark.redis
async def test_a_plan_for_another_catalog_is_refused_and_said_so(objects, redis_server):
    def heartbeat():
        with redis.Redis.from_url(redis_server, socket_timeout=5) as r:
            uid = objects.get("tiny")["metadata"]["uid"]
            return json.loads(r.get(worker_key(f"{objects.namespace}/tiny/{uid}", "w1")) or b"{}")

    async with a_worker(objects, objects.reader_of("tiny"), redis_server) as (worker, http), client(http) as c:
        objects.put_plan(a_plan(1), "tiny")
        await in_force(worker, 1)
        objects.put_plan(a_plan(2, catalog="7f3a"), "tiny")
        await eventually_async(lambda: heartbeat().get("refused_revision") == 2)
        assert heartbeat()["refused"] == "plan is for catalog '7f3a', this worker has 'tiny'"
        assert 'apparate_plans_refused_total{model="tiny"' in (await c.get("/metrics")).text
        assert (await ask(c, items(1)))["parameters"]["plan_revision"] == 1
        objects.put_plan(a_plan(3), "tiny")
        await in_force(worker, 3)
        await eventually_async(lambda: heartbeat().get("refused") == "")


async def test_a_changed_budget_reaches_a_running_worker(objects):
    async with a_worker(objects, objects.reader_of("tiny")) as (worker, http), client(http) as c:
        objects.change({"budget": {"rampOverhead": 0.0001, "accuracyLoss": 0.2}}, "tiny")
        await eventually_async(lambda: only(worker).keeper.ramp_budget == 0.0001)
        objects.put_plan(a_plan(1, (0, 1, 2)), "tiny")
        await eventually_async(lambda: only(worker).keeper.refused is not None)
        assert only(worker).keeper.refused.reason == "budget"
        objects.change({"budget": {"rampOverhead": 0.5}}, "tiny")
        await in_force(worker, 1)  # the same plan, refused before
        await ask(c, items(1))
        assert only(worker).guard._guard.ledger.budget == 0.2


async def test_a_changed_mode_reaches_a_running_worker(objects):
    async with a_worker(objects, objects.reader_of("tiny")) as (worker, http), client(http) as c:
        objects.change({"serving": {"mode": "compact", "compact": {"fullShare": 0.3}}}, "tiny")
        await eventually_async(lambda: only(worker).guard._wanted.share == 0.3)
        objects.put_plan(Plan.of(1, [0], [1.0], "tiny"), "tiny")
        await in_force(worker, 1)
        await ask(c, items(1))
        filled(worker)
        await eventually_async(lambda: only(worker).guard.share == 0.3)
        objects.change({"serving": {"mode": "report"}}, "tiny")
        await eventually_async(lambda: only(worker).guard._wanted.share == 1.0)
        await ask(c, items(1))
        assert only(worker).guard.share == 1.0


async def test_while_the_api_server_is_away_the_plan_stays_and_a_newer_one_is_taken_when_it_is_back(objects):
    async with TcpProxy(int(objects.cluster.url.rpartition(":")[2])) as proxy:
        objects.put_plan(a_plan(1), "tiny")
        through = objects.reader_of("tiny", server=f"https://127.0.0.1:{proxy.port}")
        async with a_worker(objects, through) as (worker, http), client(http) as c:
            await in_force(worker, 1)
            target, proxy.target = proxy.target, 9  # nobody listens there
            proxy.cut()
            objects.put_plan(a_plan(2), "tiny")
            assert (await ask(c, items(1)))["parameters"]["plan_revision"] == 1
            proxy.target = target
            await in_force(worker, 2)


def test_an_object_that_cannot_be_read_is_named(objects):
    reading = a_client(objects.cluster)
    with contextlib.closing(reading), pytest.raises(InvalidSetup, match=r"nowhere/tiny cannot be read"):
        read_object(reading, "nowhere/tiny", within_s=0.0)


def test_a_document_of_another_object_is_refused():
    with pytest.raises(InvalidSetup, match="is shop/tiny, the document is of default/tiny"):
        check_is_object(a_document(), "shop/tiny")
    with pytest.raises(InvalidSetup, match=r"no metadata\.uid"):
        check_is_object(a_document(), "default/tiny")


def test_the_object_is_the_document(objects):
    reading = a_client(objects.cluster, objects.reader_of("tiny"))
    with contextlib.closing(reading):
        document = read_object(reading, f"{objects.namespace}/tiny")
    assert isinstance(document, Document)
    assert document.model.key.endswith(objects.get("tiny")["metadata"]["uid"])
    assert EarlyExitModel.model_validate(objects.get("tiny")) == document.model


def test_a_worker_that_starts_again_while_other_inputs_are_prepared_serves_what_it_has(tmp_path):
    write_prepared(tmp_path)
    y = TensorSpec(name="y", datatype="FP32", shape=(4,))
    asked = a_document(inputs=(y,), base=tmp_path)
    document = as_prepared(asked, asked.prepared)
    assert [one.name for one in document.model.spec.model.inputs] == ["x"]
    assert load_prepared(asked.prepared, document, torch.device("cpu")).inputs == document.model.spec.model.inputs
