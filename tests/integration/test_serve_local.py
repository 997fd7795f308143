"""Local mode whole: real Redis, controller and workers, with the ways they can die. One small model."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from apparate.cli import doctor
from apparate.cli.logs import LogWriter
from apparate.cli.main import run
from apparate.cli.ports import FREE
from apparate.cli.serve import read
from apparate.cli.stack import LocalStack, StackFailed
from support.eventually import eventually
from support.processes import Process, a_process, is_alive
from support.tiny import Load, ask, points, prepare, write_document, write_tiny_model

pytestmark = [pytest.mark.redis, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    prepare(found)
    return found


@contextlib.contextmanager
def a_stack(document: Path, *, replicas: int = 1, **options: Any) -> Iterator[LocalStack]:
    served = read([write_document(document.parent, replicas=replicas)])
    log = io.StringIO()
    grace = {"EEM_WORKER_GRACE_SECONDS": "2"}  # a busy machine's load balancer takes a while to look
    stack = LocalStack(served, ports=FREE, log=LogWriter(log, human=False), environ=grace, **options)
    try:
        yield stack.start()
    finally:
        stack.kill()
        print(log.getvalue())  # pytest shows it when the test fails


@pytest.fixture(scope="module")
def stack(document: Path) -> Iterator[LocalStack]:
    """Two workers, a controller and Redis, for all tests here: each leaves it running."""
    with a_stack(document, replicas=2) as running:
        yield running


@pytest.fixture(scope="module")
def answered() -> list[int]:
    """Answers of each test that loaded the shared stack."""
    return []


def addresses(stack: LocalStack) -> Callable[[], list[str]]:
    return lambda: [one.http for one in stack.endpoints]


def described(stack: LocalStack) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{stack.controller_url}/v1/models/default/tiny").raise_for_status().json()
    return found


def ready(serve: Process) -> dict[str, Any]:
    """What `apparate serve --json` says when all is up."""
    eventually(lambda: serve.out or serve.popen.poll() is not None, within=90)
    assert serve.out, serve.err[-5:]
    return json.loads(serve.out[-1])  # type: ignore[no-any-return]


def delivered(stack: LocalStack) -> int:
    """The revision that every worker runs; 0 while they differ."""
    delivery = described(stack)["delivery"]
    return delivery["revision"] if delivery["workers"] and delivery["workers"] == delivery["updatedWorkers"] else 0


def test_the_doctor_finds_no_fault_in_a_stack_that_has_just_started_nor_in_a_pause(
    stack: LocalStack, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SETTLE_S", 60.0)
    where = ["--url", stack.controller_url]
    assert run(["doctor", *where]) == 0, capsys.readouterr().out
    assert run(["pause", "tiny", *where]) == 0
    try:
        assert run(["doctor", *where]) == 0, capsys.readouterr().out
        shown = capsys.readouterr().out
    finally:
        assert run(["resume", "tiny", *where]) == 0
    assert "paused since" in shown and f"apparate resume tiny --url {stack.controller_url}" in shown
    assert run(["status", *where]) == 0
    assert "ResumedByHand: plans follow the traffic again" in capsys.readouterr().out


def test_answers_come_and_plans_are_decided_and_delivered(stack: LocalStack, answered: list[int]) -> None:
    answer = ask(stack.endpoints[0].http, points(3))
    assert answer["model_name"] == "tiny"
    assert answer["outputs"][0]["shape"][0] == 3
    with Load(addresses(stack)) as load:
        eventually(lambda: delivered(stack) >= 2, within=60)  # 1 is the first plan, all closed
        eventually(lambda: described(stack)["observed"].get("exitRate", 0) > 0, within=60)
    answered.append(load.answered + 3)
    assert load.lost == []


def test_a_stack_without_adaptation_has_neither_redis_nor_controller_and_drains_without_loss(document: Path) -> None:
    with a_stack(document, adapt=False) as plain:
        assert (plain.redis, plain.controller) == (None, None)
        with Load(addresses(plain), clients=3) as load:
            eventually(lambda: load.answered > 20, within=20)
            assert plain.stop()
        assert load.lost == []


def test_serving_goes_on_without_the_controller_and_feedback_resumes(stack: LocalStack, answered: list[int]) -> None:
    with Load(addresses(stack)) as load:
        eventually(lambda: load.answered > 20)
        assert stack.controller is not None and stack.controller.pid is not None
        os.kill(stack.controller.pid, signal.SIGKILL)
        before = load.answered
        eventually(lambda: load.answered > before + 20)
        eventually(
            lambda: stack.controller is not None and stack.controller.restarts and stack.controller_url, within=30
        )
        records = described(stack)["records"]
        eventually(lambda: described(stack)["records"] > records + 20, within=30)
    answered.append(load.answered)
    assert load.lost == []
    assert described(stack)["feedback"]["records"] <= sum(answered)  # nothing is counted twice


def test_serving_goes_on_without_redis_and_feedback_resumes(stack: LocalStack, answered: list[int]) -> None:
    with Load(addresses(stack)) as load:
        eventually(lambda: load.answered > 20)
        assert stack.redis is not None
        os.kill(stack.redis.pid, signal.SIGKILL)
        before = load.answered
        eventually(lambda: load.answered > before + 20)
        eventually(lambda: stack.redis_restarts == 1)
        records = described(stack)["feedback"]["records"]
        eventually(lambda: described(stack)["feedback"]["records"] > records + 20, within=30)
        eventually(lambda: delivered(stack) >= 1, within=30)
    answered.append(load.answered)
    assert load.lost == []
    assert described(stack)["feedback"]["records"] <= sum(answered)


def test_a_worker_that_is_asked_to_end_under_load_loses_no_request(stack: LocalStack) -> None:
    with Load(addresses(stack), clients=3) as load:
        eventually(lambda: load.answered > 20)
        worker = stack.workers["default/tiny"][0]
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGTERM)
        eventually(lambda: worker.restarts == 1 and worker.ready, within=60)
        before = load.answered
        eventually(lambda: load.answered > before + 20)
    assert load.lost == []


def test_a_model_that_cannot_start_says_why(tmp_path: Path) -> None:
    document = write_tiny_model(tmp_path / "unprepared")
    unready = LocalStack(read([document]), ports=FREE, log=LogWriter(io.StringIO(), human=False))
    with pytest.raises(StackFailed, match=r"worker tiny-0 ended with exit status \d+: .*prepare"):
        unready.start(60)


@pytest.mark.parametrize(("number", "option"), [(signal.SIGINT, "--prepare"), (signal.SIGTERM, "--no-prepare")])
def test_the_command_serves_until_a_signal_and_ends_with_0(document: Path, number: signal.Signals, option: str) -> None:
    command = [sys.executable, "-m", "apparate.cli", "serve", "--json", "-f", str(document), "--workers", "1"]
    with a_process([*command, option]) as serve:
        said = ready(serve)
        assert ask(said["endpoints"][0]["http"], points(1))["outputs"]
        eventually(lambda: httpx.get(f"{said['controller']}/readyz").is_success)
        serve.send(number)
        assert serve.wait(30) == 0


def test_no_process_outlives_the_command(document: Path) -> None:
    command = [sys.executable, "-m", "apparate.cli", "serve", "--json", "--no-prepare", "-f", str(document)]
    with a_process(command) as serve:
        ready(serve)
        children = [int(p) for p in Path(f"/proc/{serve.pid}/task").glob("*/children") for p in p.read_text().split()]
        assert len(children) == 3  # worker, controller, Redis
        serve.send(signal.SIGKILL)
        eventually(lambda: not any(is_alive(pid) for pid in children))


def test_together_one_worker_answers_for_every_model_of_the_file(document: Path) -> None:
    first, second = (write_document(document.parent, name=name) for name in ("tiny", "twin"))
    (prepared,) = (one.document.prepared for one in read([first]))
    shutil.copytree(prepared, prepared.with_name("twin"), dirs_exist_ok=True)
    both = document.parent / "both.yaml"
    both.write_text(f"{first.read_text()}---\n{second.read_text()}")
    stack = LocalStack(read([both]), ports=FREE, adapt=False, together=True, log=LogWriter(io.StringIO(), human=False))
    with stack:
        assert [one.model for one in stack.endpoints] == ["default/tiny", "default/twin"]
        assert len({one.http for one in stack.endpoints}) == len(list(stack.children)) == 1
        for name in ("tiny", "twin"):
            assert ask(stack.endpoints[0].http, points(1), name=name)["model_name"] == name
