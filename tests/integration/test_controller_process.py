"""The controller as its users run it: a process with settings, a ready line, signals, and a death in the middle."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis

from apparate.contract.stream import feedback_key, state_key
from support.control import MODEL, a_document, producing
from support.eventually import eventually
from support.processes import Process, a_process

pytestmark = pytest.mark.redis
COMMAND = [sys.executable, "-m", "apparate_controller"]


class Controller:
    def __init__(self, process: Process) -> None:
        self.process = process
        line = eventually(lambda: process.out and process.out[0], within=30)
        self.ready = json.loads(line)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.ready['http']}{path}", timeout=30)

    def put(self, path: str, wanted: dict[str, object]) -> None:
        url = f"http://{self.ready['http']}/v1/models/default/m/{path}"
        httpx.put(url, json=wanted, timeout=10).raise_for_status()

    def model(self) -> dict[str, Any]:
        return self.get("/v1/models/default/m").json()

    def feedback(self) -> dict[str, int]:
        return self.get("/v1/models/default/m").json()["feedback"]


@contextlib.contextmanager
def a_controller(url: str, document, **environ: str) -> Iterator[Controller]:
    settings = {"REDIS_URL": url, "DOCUMENTS": str(document), "PORT": "0", **environ}
    with a_process(COMMAND, {f"EEM_CONTROLLER_{name}": value for name, value in settings.items()}) as process:
        yield Controller(process)


def test_it_says_one_line_when_it_is_ready_and_ends_cleanly_on_sigterm(redis_server, tmp_path):
    with a_controller(redis_server, a_document(tmp_path)) as controller:
        eventually(lambda: controller.get("/readyz").status_code == 200, within=10)
        controller.process.send(signal.SIGTERM)
        assert controller.process.wait(within=60) == 0
        assert (len(controller.process.out), controller.ready["ready"]) == (1, True)
        assert all(json.loads(line) for line in controller.process.err)


def test_killed_and_restarted_again_and_again_it_counts_every_batch_once(redis_server, tmp_path):
    document = a_document(tmp_path)
    with producing(redis_server) as producer:
        for _ in range(2):
            with a_controller(redis_server, document) as controller:
                producer.send(150)
                eventually(lambda c=controller, n=producer.produced: c.feedback()["batches"] > n - 150, within=10)
                producer.send(150)
                controller.process.send(signal.SIGKILL)
                controller.process.wait()
        producer.repeat(5)
        with a_controller(redis_server, document) as controller:
            eventually(lambda: controller.feedback()["duplicates"], within=10)
            model = controller.get("/v1/models/default/m").json()
    counts = model["feedback"]
    assert (producer.produced, counts["batches"], counts["lost"], counts["duplicates"]) == (600, 600, 0, 1)
    assert model["window"]["records"] == 4 * 600


def test_killed_and_restarted_it_knows_its_decisions_and_what_people_asked_for(redis_server, tmp_path):
    document = a_document(tmp_path)
    with a_controller(redis_server, document) as controller:
        eventually(lambda: controller.model()["decisions"], within=10)
        controller.put("paused", {"paused": True, "by": "alice"})
        before = controller.model()
        controller.process.send(signal.SIGKILL)
        controller.process.wait()
    with a_controller(redis_server, document) as controller, producing(redis_server) as producer:
        eventually(lambda: controller.model()["decisions"] == before["decisions"], within=10)
        producer.send(200)
        eventually(lambda: controller.model()["observed"].get("samples") == 800, within=10)
        after = controller.model()
    assert [one["reason"] for one in after["decisions"]] == ["PausedByHand", "Started"]
    assert (after["pausedSince"], after["pausedBy"]) == (before["pausedSince"], "alice")
    with redis.Redis.from_url(redis_server) as client:
        kept = [name for name in client.hkeys(state_key(MODEL)) if name.startswith(b"decision:")]
        assert (len(kept), client.ttl(state_key(MODEL)) > 0) == (2, True)


def test_sigterm_stores_progress_so_that_nothing_is_pending(redis_server, tmp_path):
    with producing(redis_server) as producer, redis.Redis.from_url(redis_server) as client:
        with a_controller(redis_server, a_document(tmp_path)) as controller:
            producer.send(300)
            eventually(lambda: controller.feedback()["batches"] > 0, within=10)
            controller.process.send(signal.SIGTERM)
            assert controller.process.wait(within=60) == 0
        assert client.xpending(feedback_key(MODEL), "apparate-controller")["pending"] == 0


def test_it_starts_and_answers_while_redis_is_away_and_goes_on_when_it_comes(own_redis, tmp_path):
    own_redis.kill9()
    with a_controller(own_redis.url, a_document(tmp_path)) as controller:
        assert controller.get("/healthz").status_code == 200
        eventually(lambda: controller.get("/readyz").status_code == 503, within=10)
        own_redis.start()
        eventually(lambda: controller.get("/readyz").status_code == 200, within=10)


def test_an_outage_fills_no_log(own_redis, tmp_path):
    with a_controller(own_redis.url, a_document(tmp_path)) as controller:
        eventually(lambda: controller.get("/readyz").status_code == 200, within=10)
        own_redis.kill9()
        eventually(lambda: controller.get("/readyz").status_code == 503, within=10)
        own_redis.start()
        eventually(lambda: controller.get("/readyz").status_code == 200, within=10)
        assert len(controller.process.err) < 50


def test_an_eviction_policy_is_warned_of(own_redis, tmp_path):
    with redis.Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    with a_controller(own_redis.url, a_document(tmp_path)) as controller:
        eventually(lambda: any("allkeys-lru" in line for line in controller.process.err), within=10)
        assert "apparate_redis_eviction_risk 1.0" in controller.get("/metrics").text


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"DOCUMENTS": "/nowhere.yaml"}, "/nowhere.yaml"),
        ({"BLOK_S": "1"}, "EEM_CONTROLLER_BLOK_S is not a setting"),
        ({"PORT": "99999"}, "EEM_CONTROLLER_PORT"),
        ({"HOST": "192.0.2.1"}, "EEM_CONTROLLER_HOST"),
    ],
)
def test_a_setting_that_cannot_be_used_is_one_line_and_status_2(tmp_path, environ, said):
    settings = {"DOCUMENTS": str(a_document(tmp_path)), "PORT": "0", **environ}
    with a_process(COMMAND, {f"EEM_CONTROLLER_{name}": value for name, value in settings.items()}) as process:
        assert process.wait(60) == 2
        assert (len(process.err), said in process.err[0]) == (1, True)
