"""How local mode keeps a child process running: real processes, small ones."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator

import pytest

from apparate.cli import children
from apparate.cli.children import Child
from apparate.cli.logs import LogWriter
from support.eventually import eventually
from support.processes import is_alive

READY = "import json, os; print(json.dumps({'ready': True, 'name': 'w', 'http': '127.0.0.1:' + %s}), flush=True)"
SERVING = (
    "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"  # before it says it is ready
    + READY % "'4321'"
    + "\ntime.sleep(60)"
)


@pytest.fixture
def a_child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Child]]:
    monkeypatch.setattr(children, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(children, "MOST_BACKOFF_S", 0.05)
    made: list[Child] = []

    def make(code: str) -> Child:
        environ = {**os.environ, "EEM_WORKER_HTTP_PORT": "0"}
        made.append(Child("worker", (sys.executable, "-c", code), environ, LogWriter(io.StringIO(), human=False)))
        made[-1].start()
        return made[-1]

    yield make
    for child in made:
        child.send(signal.SIGKILL)
        child.wait(5)


def tended(child: Child, fn: Callable[[], object], within: float = 10) -> None:
    def once() -> object:
        child.tend()
        return fn()

    eventually(once, within)


def test_a_child_is_ready_when_it_says_so(a_child: Callable[[str], Child]) -> None:
    child = a_child(SERVING)
    eventually(lambda: child.ready)
    assert child.ready == {"ready": True, "name": "w", "http": "127.0.0.1:4321"}


def test_a_child_that_crashes_is_started_again_on_its_port(a_child: Callable[[str], Child]) -> None:
    child = a_child(SERVING.replace("'4321'", "(os.environ['EEM_WORKER_HTTP_PORT'].replace('0', '') or '4321')"))
    eventually(lambda: child.ready)
    first = child.pid
    child.send(signal.SIGKILL)
    tended(child, lambda: child.restarts == 1 and child.ready)
    assert child.pid != first
    assert child.environ["EEM_WORKER_HTTP_PORT"] == "4321"


def test_a_child_that_keeps_crashing_is_given_up_with_its_own_words(a_child: Callable[[str], Child]) -> None:
    child = a_child(READY % "'1'" + "\nraise SystemExit('no such device: cuda:7')")
    tended(child, lambda: child.given_up)
    assert "exit status 1: no such device: cuda:7" in child.given_up
    assert child.restarts == children.MOST_QUICK_CRASHES - 1


def test_a_child_with_bad_input_is_given_up_at_once(a_child: Callable[[str], Child]) -> None:
    said = json.dumps({"event": "cannot start", "level": "error", "error": "digest is 1, expected 2"})
    child = a_child(f"import sys; print({said!r}, file=sys.stderr); sys.exit(2)")
    tended(child, lambda: child.given_up)
    assert child.restarts == 0
    assert "cannot start: digest is 1, expected 2" in child.given_up


def test_a_child_that_was_asked_to_end_by_somebody_is_started_again(a_child: Callable[[str], Child]) -> None:
    child = a_child(SERVING)
    eventually(lambda: child.ready)
    child.send(signal.SIGTERM)
    tended(child, lambda: child.restarts == 1 and child.ready)


def test_a_child_leaves_the_terminal_to_its_parent(a_child: Callable[[str], Child]) -> None:
    child = a_child(SERVING)
    eventually(lambda: child.ready)
    assert child.pid is not None
    assert os.getsid(child.pid) == child.pid


def test_a_child_ends_when_waited_for(a_child: Callable[[str], Child]) -> None:
    child = a_child(SERVING)
    eventually(lambda: child.ready)
    pid = child.pid
    assert pid is not None
    child.send(signal.SIGTERM)
    assert child.wait(5)
    assert child.status == 0
    assert not is_alive(pid)


def test_logs_of_a_child_say_which_process_wrote_them() -> None:
    stream = io.StringIO()
    LogWriter(stream, human=False).line("worker m-0", '{"event": "plan applied", "level": "info", "revision": 3}')
    assert json.loads(stream.getvalue()) == {
        "process": "worker m-0",
        "event": "plan applied",
        "level": "info",
        "revision": 3,
    }


def test_logs_on_a_terminal_are_for_people() -> None:
    stream = io.StringIO()
    LogWriter(stream, human=True).line("worker m-0", '{"event": "plan applied", "level": "info", "revision": 3}')
    assert "worker m-0" in stream.getvalue()
    assert "plan applied" in stream.getvalue()
    assert "revision=3" in stream.getvalue()


def test_a_line_that_is_no_json_is_passed_on() -> None:
    stream = io.StringIO()
    LogWriter(stream, human=False).line("controller", "Traceback (most recent call last):")
    assert json.loads(stream.getvalue())["event"] == "Traceback (most recent call last):"
