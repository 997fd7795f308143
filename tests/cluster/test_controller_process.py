"""The controller as a process on a real API server and a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
import redis

from apparate.contract.stream import FIELD, feedback_key, worker_key, workers_key
from apparate.contract.wire import encode_feedback
from apparate.plan import Plan
from support.control import CATALOG, a_batch
from support.eventually import eventually, eventually_async
from support.objects import Objects
from support.processes import Process, a_process
from support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.cluster, pytest.mark.redis]
COMMAND = [sys.executable, "-m", "apparate_controller"]


@pytest.fixture
def objects(control_plane, namespace, crd):
    found = Objects(control_plane, namespace)
    found.create(adaptation={"window": 1024})
    return found


class Running:
    """A controller that has said that it is ready."""

    def __init__(self, process: Process, objects: Objects) -> None:
        self.process, self._objects = process, objects
        self.url = f"http://{json.loads(eventually(lambda: process.out, within=30)[0])['http']}"

    def get(self, path: str) -> Any:
        answer = httpx.get(self.url + path)
        return answer.json() if answer.is_success else {"status": answer.status_code}

    def model(self) -> dict[str, Any]:
        return self.get(f"/v1/models/{self._objects.namespace}/m")


@contextlib.contextmanager
def a_controller(objects: Objects, redis_url: str, *, kubeconfig: str = "", **settings: str) -> Iterator[Running]:
    values = {
        "KUBERNETES": "true",
        "KUBECONFIG": kubeconfig or str(objects.cluster.kubeconfig),
        "NAMESPACES": objects.namespace,
        "REDIS_URL": redis_url,
        "PORT": "0",
        "RETRY_S": "0.3",
        "BLOCK_S": "0.2",
        **settings,
    }
    with a_process(COMMAND, {f"EEM_CONTROLLER_{name}": value for name, value in values.items()}) as process:
        yield Running(process, objects)


class Worker:
    """What a worker that runs plans writes to Redis."""

    def __init__(self, url: str, objects: Objects) -> None:
        self.client = redis.Redis.from_url(url, socket_timeout=5)
        self.key = f"{objects.namespace}/m/{objects.get()['metadata']['uid']}"
        self.seq = 0

    def beat(self, revision: int, served: int = 0, **other: Any) -> None:
        said = {"revision": revision, "served": served, **other}
        self.client.set(worker_key(self.key, "w"), json.dumps(said), ex=60)
        self.client.sadd(workers_key(self.key), "w")

    def feed(self, revision: int, batches: int = 20, n: int = 32) -> None:
        """Feedback in which every ramp is sure and right."""
        for _ in range(batches):
            batch = a_batch(self.seq, n=n, revision=revision)
            final = batch.final_labels
            batch = replace(
                batch,
                model=self.key,
                errors=np.full((n, 3), 0.01, np.float32),
                labels=np.repeat(final[:, None], 3, axis=1),
            )
            self.client.xadd(feedback_key(self.key), {FIELD: encode_feedback(batch)})
            self.seq += 1

    def close(self) -> None:
        self.client.close()


@pytest.fixture
def worker(objects, redis_server):
    with contextlib.closing(Worker(redis_server, objects)) as found:
        yield found


def test_a_model_gets_its_first_plan_as_soon_as_it_is_prepared(objects, redis_server):
    with a_controller(objects, redis_server) as controller:
        eventually(lambda: "not prepared" in controller.model().get("reason", ""))
        objects.prepare()
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        assert (objects.plan()["reason"], objects.plan()["catalog"]) == ("Started", CATALOG.digest)
        eventually(lambda: objects.condition("PlanDelivered").get("reason") == "NoWorkers")
        controller.process.send(signal.SIGTERM)
        assert controller.process.wait() == 0


def test_feedback_becomes_plans_and_what_they_do_is_in_the_status(objects, redis_server, worker):
    objects.prepare()
    with a_controller(objects, redis_server) as controller:
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        worker.beat(1)
        eventually(lambda: objects.condition("PlanDelivered").get("status") == "True")
        worker.feed(1)
        eventually(lambda: objects.plan()["reason"] == "ThresholdsTuned", within=15)
        tuned = objects.plan()["revision"]
        assert [plan["revision"] for plan in objects.status()["history"]][-1] == 1
        worker.beat(tuned, refused="no such ramp", refused_revision=tuned + 1)
        worker.feed(tuned, batches=10)
        eventually(lambda: objects.condition("FeedbackFlowing").get("status") == "True", within=10)
        eventually(lambda: objects.condition("AccuracyMet").get("status") == "True", within=10)
        observed = objects.status()["observed"]
        assert observed["accuracyLoss"]["samples"] > 0
        assert {one["ramp"] for one in observed["ramps"]} <= {0, 1, 2}

        def delivered() -> bool:
            revision = objects.plan()["revision"]  # ramps that are not worth their time may have gone meanwhile
            worker.beat(revision)
            told = {"revision": revision, "workers": 1, "updatedWorkers": 1}
            return objects.status()["delivery"] == told and controller.model()["plan"]["revision"] == revision

        eventually(delivered)


def test_a_settled_model_is_not_written(objects, redis_server, worker):
    objects.prepare()
    with a_controller(objects, redis_server):
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        worker.beat(1)
        eventually(lambda: objects.condition("PlanDelivered").get("status") == "True")
        eventually(lambda: objects.condition("FeedbackFlowing"))
        version = objects.get()["metadata"]["resourceVersion"]
        for beat in range(4):
            time.sleep(1)  # the controller looks around every second
            worker.beat(1, served=0, in_flight=beat)
        assert objects.get()["metadata"]["resourceVersion"] == version


def test_a_refused_plan_is_in_the_condition_with_the_workers_reason(objects, redis_server, worker):
    objects.prepare()
    with a_controller(objects, redis_server):
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        worker.beat(0, refused="plan is for catalog 'a', this worker has 'b'", refused_revision=1)
        eventually(lambda: objects.condition("PlanDelivered").get("reason") == "PlanRefused")
        assert "w refused it: plan is for catalog 'a'" in objects.condition("PlanDelivered")["message"]


def test_a_plan_put_there_by_hand_is_gone_on_from(objects, redis_server):
    objects.prepare()
    with a_controller(objects, redis_server) as controller:
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        objects.put_plan(Plan.of(10, [0, 1], [0.25, 0.5], CATALOG.digest))
        eventually(lambda: controller.model()["plan"]["revision"] == 10, within=10)
        eventually(lambda: [one["revision"] for one in objects.status().get("history", [])] == [1])
        assert [ramp["threshold"] for ramp in objects.plan()["ramps"]] == [0.25, 0.5]


def test_a_plan_put_there_by_hand_stays_though_feedback_of_it_comes_first(objects, redis_server, worker):
    objects.prepare()
    with a_controller(objects, redis_server) as controller:
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        objects.put_plan(Plan.of(10, [0, 1], [0.25, 0.5], CATALOG.digest))
        worker.feed(10, batches=1)
        eventually(lambda: controller.model()["plan"]["revision"] == 10, within=10)
        eventually(lambda: controller.model()["feedback"]["batches"] == 1, within=10)
        assert objects.plan()["revision"] == 10
        assert controller.model()["decisions"][0]["reason"] == "PutByHand"


def test_what_people_ask_for_is_told_while_figures_go_on_and_outlives_the_controller(objects, redis_server, worker):
    objects.prepare()
    with a_controller(objects, redis_server) as controller:
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        objects.change({"adaptation": {"paused": True}})
        eventually(lambda: controller.model().get("paused"), within=10)
        worker.feed(1)
        eventually(lambda: controller.model()["observed"]["samples"] == 640, within=10)
        eventually(lambda: controller.model()["decisions"][0]["reason"] == "PausedByHand", within=10)
        before = controller.model()
        assert before["pausedSince"] and before["pausedBy"] == before["decisions"][0]["by"] != ""
        controller.process.send(signal.SIGKILL)
        controller.process.wait()
    with a_controller(objects, redis_server) as controller:
        eventually(lambda: controller.model().get("decisions"), within=10)
        after = controller.model()
        assert (after["pausedSince"], after["pausedBy"]) == (before["pausedSince"], before["pausedBy"])
        assert [one["reason"] for one in after["decisions"]] == ["PausedByHand", "Started"]
        eventually(lambda: controller.model()["observed"]["samples"] == 640, within=10)
    assert objects.plan()["revision"] == 1


def test_a_plan_of_another_catalog_put_there_by_hand_is_replaced(objects, redis_server):
    objects.prepare()
    with a_controller(objects, redis_server):
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        objects.put_plan(Plan.of(10, [0], [0.25], "another"))
        eventually(lambda: objects.plan()["catalog"] == CATALOG.digest, within=10)
        assert objects.plan()["revision"] == 11


def test_a_changed_budget_starts_a_session_that_knows_the_old_records(objects, redis_server, worker):
    objects.prepare()
    with a_controller(objects, redis_server) as controller:
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        worker.feed(1, batches=4)
        eventually(lambda: controller.model().get("window", {}).get("records") == 128, within=10)
        objects.change({"adaptation": {"paused": True}})
        eventually(lambda: controller.model().get("paused"), within=10)
        eventually(lambda: controller.model().get("window", {}).get("records") == 128, within=10)
        worker.feed(1)
        eventually(lambda: controller.model().get("window", {}).get("records", 0) > 700, within=10)
        assert objects.plan()["revision"] == 1
        objects.change({"adaptation": {"paused": False}})
        worker.feed(1, batches=4)
        eventually(lambda: objects.plan()["revision"] > 1, within=15)


def test_a_deleted_model_is_forgotten(objects, redis_server):
    objects.prepare()
    with a_controller(objects, redis_server) as controller:
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        objects.delete()
        eventually(lambda: controller.get("/v1/models") == {"models": []}, within=10)
        assert controller.get("/healthz")["status"] == "ok"


def test_of_two_controllers_one_adapts_and_the_other_takes_over_when_it_is_killed(objects, redis_server):
    lease = {"LEASE_NAMESPACE": objects.namespace}
    objects.prepare()
    with a_controller(objects, redis_server, **lease) as first:
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        with a_controller(objects, redis_server, **lease) as second:
            eventually(lambda: "leads" in second.get("/readyz")["problems"].get("", ""), within=10)
            assert second.get("/v1/models") == {"status": 503}
            first.process.send(signal.SIGKILL)
            objects.put_plan(Plan.of(10, [0], [0.25], CATALOG.digest))
            eventually(lambda: second.model().get("plan", {}).get("revision") == 10, within=30)


def test_a_standby_answers_about_models_as_the_leader_does(objects, redis_server):
    lease = {"LEASE_NAMESPACE": objects.namespace, "ADDRESS": "127.0.0.1"}
    path = f"/v1/models/{objects.namespace}/m"
    objects.prepare()
    with a_controller(objects, redis_server, **lease) as first:
        eventually(lambda: first.model().get("plan", {}).get("revision") == 1, within=10)
        with a_controller(objects, redis_server, **lease) as second:
            eventually(lambda: "leads" in second.get("/readyz")["problems"].get("", ""), within=10)
            assert second.get(path)["plan"] == first.get(path)["plan"]
            assert second.get("/v1/models") == first.get("/v1/models")
            assert second.get("/v1/models/nowhere/none") == {"status": 404}
            recordings = [httpx.get(f"{one.url}{path}/recording?ramps=all") for one in (first, second)]
            assert recordings[0].headers["content-disposition"] == recordings[1].headers["content-disposition"]
            assert "apparate_leader 0" in httpx.get(second.url + "/metrics").text  # its own
            first.process.send(signal.SIGKILL)
            first.process.wait()
            answer = httpx.get(f"{second.url}/v1/models")
            assert (answer.status_code, "does not answer" in answer.text) == (503, True)
            eventually(lambda: second.model().get("plan", {}).get("revision") == 1, within=30)


def test_a_controller_that_ends_lets_another_lead_at_once(objects, redis_server):
    lease = {"LEASE_NAMESPACE": objects.namespace}
    objects.prepare()
    with a_controller(objects, redis_server, **lease) as first:
        eventually(lambda: objects.plan().get("revision") == 1, within=10)
        with a_controller(objects, redis_server, **lease) as second:
            eventually(lambda: second.get("/v1/models") == {"status": 503})
            first.process.send(signal.SIGTERM)
            assert first.process.wait() == 0
            eventually(lambda: second.model().get("ready"), within=10)


async def test_after_a_black_hole_the_controller_goes_on_without_a_restart(objects, redis_server):
    async with TcpProxy(int(objects.cluster.url.rpartition(":")[2])) as proxy:
        objects.prepare()
        through = str(objects.cluster.kubeconfig_at(f"https://127.0.0.1:{proxy.port}"))
        options = {"kubeconfig": through, "LEASE_NAMESPACE": objects.namespace}
        with contextlib.ExitStack() as stack:
            controller = await entered(stack, objects, redis_server, options)
            await eventually_async(lambda: objects.plan().get("revision") == 1, within=15)
            proxy.swallow()
            objects.put_plan(Plan.of(10, [0], [0.25], CATALOG.digest))
            await asyncio.sleep(20)  # longer than it may hold the lease unheard
            proxy.heal()  # no connection of before is ever told

            async def followed():
                async with httpx.AsyncClient() as client:
                    answer = await client.get(f"{controller.url}/v1/models/{objects.namespace}/m")
                return answer.is_success and answer.json()["plan"]["revision"] == 10

            await eventually_async(followed, within=60)
            assert controller.process.popen.poll() is None


async def entered(stack, objects, redis_server, options):
    """A controller whose start does not hold up the proxy, which is in this thread's loop."""
    return await asyncio.to_thread(stack.enter_context, a_controller(objects, redis_server, **options))


def rights(*, patch: bool = True, watch: bool = True) -> list[dict[str, Any]]:
    """Rules of a controller's Role, without some of them."""
    reading, writing = ["get", *(["list", "watch"] if watch else [])], ["patch"] if patch else ["get"]
    return [
        {"apiGroups": ["apparate.dev"], "resources": ["earlyexitmodels"], "verbs": reading},
        {"apiGroups": ["apparate.dev"], "resources": ["earlyexitmodels/status"], "verbs": writing},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
    ]


@pytest.mark.parametrize(
    ("lacking", "right", "verb"),
    [({"patch": False}, "patch earlyexitmodels/status", "patch"), ({"watch": False}, "list earlyexitmodels", "list")],
)
def test_a_controller_that_lacks_a_right_is_not_ready_until_it_has_it(objects, redis_server, lacking, right, verb):
    objects.prepare()
    kubeconfig = str(objects.account("controller", rights(**lacking)))
    with a_controller(objects, redis_server, kubeconfig=kubeconfig) as controller:
        tries = f'apparate_controller_kubernetes_errors_total{{code="403",verb="{verb}"}} '

        def tried() -> float:
            text = httpx.get(controller.url + "/metrics").text
            return max([float(line.removeprefix(tries)) for line in text.splitlines() if line.startswith(tries)] + [0])

        eventually(lambda: tried() >= 3, within=20)
        answer = httpx.get(controller.url + "/readyz")
        named = answer.json()["problems"].get(f"{right} in namespace {objects.namespace}", "")
        assert (answer.status_code, "a right is missing in the controller's Role" in named) == (503, True), answer.text
        assert httpx.get(controller.url + "/healthz").status_code == 200  # a restart would not help
        told = [line for line in controller.process.err if "Kubernetes refuses" in line and right in line]
        assert len(told) == 1
        objects.account("controller", rights())
        eventually(lambda: httpx.get(controller.url + "/readyz").status_code == 200, within=40)
        eventually(lambda: objects.plan().get("revision") == 1, within=10)


def test_settings_that_say_nothing_of_models_are_refused():
    with a_process(COMMAND, {"EEM_CONTROLLER_PORT": "0"}) as process:
        assert process.wait() == 2
        assert "EEM_CONTROLLER_DOCUMENTS or EEM_CONTROLLER_KUBERNETES" in "\n".join(process.err)
