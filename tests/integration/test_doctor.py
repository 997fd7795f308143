"""`apparate doctor` on this machine: a real Redis with the usual faults, a controller's own words."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
import redis

from apparate.cli import doctor
from apparate.cli.main import run

pytestmark = pytest.mark.redis


def looked(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, tuple[str, str]]]:
    status = run(["doctor", *argv, "-o", "json"])
    return status, {one["check"]: (one["verdict"], one["told"]) for one in json.loads(capsys.readouterr().out)}


@pytest.fixture
def configured(redis_server: str) -> Iterator[redis.Redis]:
    """A client of the server; what is configured by it ends with the test."""
    with redis.Redis.from_url(redis_server) as client:
        before = {name: client.config_get(name)[name] for name in ("maxmemory", "maxmemory-policy")}
        yield client
        for name, value in before.items():
            client.config_set(name, value)


def test_a_redis_as_it_should_be_passes(redis_server: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = looked(["--redis-url", redis_server], capsys)
    assert status == 0
    assert [found[name][0] for name in ("redis policy", "clock of redis", "redis memory")] == ["ok"] * 3


def test_a_redis_that_throws_streams_away_fails(
    configured: redis.Redis, redis_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configured.config_set("maxmemory-policy", "allkeys-lru")
    status, found = looked(["--redis-url", redis_server], capsys)
    assert (status, found["redis policy"]) == (1, ("fail", "maxmemory-policy is allkeys-lru"))


def test_a_redis_that_is_nearly_full_is_told(
    configured: redis.Redis, redis_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configured.config_set("maxmemory", int(configured.info()["used_memory"] * 1.1))
    assert looked(["--redis-url", redis_server], capsys)[1]["redis memory"][0] == "warn"


def test_a_redis_that_does_not_answer_fails(capsys: pytest.CaptureFixture[str]) -> None:
    status, found = looked(["--redis-url", "redis://127.0.0.1:1"], capsys)
    assert (status, found["redis"][0]) == (1, "fail")
    assert "does not answer" in found["redis"][1]


class Unready(BaseHTTPRequestHandler):
    """A controller that cannot read feedback, on a machine whose clock is an hour ahead."""

    late_s = 0.0
    status = 503
    answer: ClassVar[dict[str, Any]] = {"status": "failing", "problems": {"default/m": "Redis does not answer"}}

    def date_time_string(self, timestamp: float | None = None) -> str:
        return formatdate((timestamp or time.time()) + self.late_s, usegmt=True)

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps(self.answer).encode())

    def log_message(self, *_: object) -> None:
        return


class Ahead(Unready):
    late_s, status, answer = 3600.0, 200, {"status": "ok", "problems": {}, "models": []}


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), request.param)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("address", [Unready], indirect=True)
def test_what_a_controller_says_of_itself_is_told(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = looked(["--url", address], capsys)
    assert (status, found["controller: default/m"]) == (1, ("fail", "Redis does not answer"))


@pytest.mark.parametrize("address", [Ahead], indirect=True)
def test_a_clock_that_is_off_is_told(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, found = looked(["--url", address], capsys)
    assert (status, found["clock of the controller"][0]) == (0, "warn")
    assert 3580 <= int(re.match(r"\d+", found["clock of the controller"][1])[0]) <= 3600


class Stale(Unready):
    """A controller whose only worker refuses the plan, and whose other model has no worker."""

    status = 200
    models: ClassVar[dict[str, Any]] = {
        "refusing": {
            "workers": [{"name": "w", "refused": "another catalog", "refusedRevision": 2}],
            "delivery": {"workers": 1},
        },
        "alone": {"workers": [], "delivery": {"workers": 0}},
        "well": {"workers": [], "delivery": {"workers": 2, "updatedWorkers": 2}},
    }

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        plan = {"revision": 2, "ramps": [{"ramp": 0, "threshold": 0.2}]}
        view = {"namespace": "default", "name": name, "plan": plan, "reason": "so it is", **self.models.get(name, {})}
        listed = [{"namespace": "default", "name": one} for one in self.models]
        answers = {"/readyz": {"status": "ok", "problems": {}}, "/v1/models": {"models": listed}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answers.get(self.path, view)).encode())


@pytest.mark.parametrize("address", [Stale], indirect=True)
def test_models_without_workers_or_with_workers_that_refuse_are_faults(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SETTLE_S", 0.1)
    status, found = looked(["--url", address], capsys)
    assert status == 1
    assert {
        name.rpartition("/")[2]: found[f"model {name}"][0]
        for name in ("default/refusing", "default/alone", "default/well")
    } == {
        "refusing": "fail",
        "alone": "fail",
        "well": "ok",
    }
    assert "another catalog" in found["model default/refusing"][1]


class JustServed(Stale):
    """A controller that hears of its worker only when it has been asked twice, and that is paused."""

    asked: ClassVar[list[str]] = []

    @property
    def models(self) -> dict[str, Any]:  # type: ignore[override]
        if self.path.endswith("/new"):
            self.asked.append(self.path)
        workers = 1 if len(self.asked) > 2 else 0
        paused = {"paused": True, "pausedSince": "2026-01-01T00:00:00Z", "pausedBy": "alice"}
        decisions = [{"reason": "Unchanged", "message": "thresholds stay"}]
        return {"new": {"delivery": {"workers": workers, "updatedWorkers": workers}, "decisions": decisions, **paused}}


@pytest.mark.parametrize("address", [JustServed], indirect=True)
def test_a_worker_that_has_just_started_is_waited_for_and_a_pause_is_no_fault(
    address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    JustServed.asked.clear()
    monkeypatch.setattr(doctor, "SETTLE_S", 60.0)
    status, found = looked(["--url", address], capsys)
    verdict, told = found["model default/new"]
    assert (status, verdict) == (0, "warn")
    assert told.startswith("paused since 2026-01-01T00:00:00Z, by alice; 1 workers on plan revision 2")


class Worker(Unready):
    """A worker, whose port was given for the controller's."""

    status, answer = 404, {"error": "there is nothing at /readyz"}


@pytest.mark.parametrize("address", [Worker], indirect=True)
def test_an_address_that_is_no_controller_is_told_by_doctor_and_status(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = looked(["--url", address], capsys)
    assert (status, found["controller"][0]) == (1, "fail")
    assert run(["status", "--url", address]) == 1
    for told in (found["controller"][1], capsys.readouterr().err):
        assert "answers 404 and is no controller, perhaps a worker: `apparate serve` prints" in told
