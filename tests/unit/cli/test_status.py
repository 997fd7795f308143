"""`apparate status` and `apparate exits` against a controller that is played by a small HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from apparate.cli.main import run

MODEL: dict[str, Any] = {
    "namespace": "default",
    "name": "vision",
    "plan": {"revision": 7, "ramps": [{"ramp": 2, "layer": "block3", "threshold": 0.25}]},
    "delivery": {"revision": 7, "workers": 2, "updatedWorkers": 1},
    "window": {"records": 512, "size": 8192},
    "observed": {"exitRate": 0.5, "loss": 0.004, "saving": 0.31},
    "ramps": [{"ramp": 2, "layer": "block3", "threshold": 0.25, "exitRate": 0.5, "agreement": 0.996, "savedMs": 1.234}],
    "decisions": [{"reason": "Tuned", "message": "one ramp opens"}],
}
ANSWERS = {"/v1/models": {"models": [{"namespace": "default", "name": "vision"}]}, "/v1/models/default/vision": MODEL}


class Controller(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = ANSWERS.get(self.path)
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Controller) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_status_shows_plan_delivery_and_last_decision(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert [t for t in ("default/vision", "1/2", "50.0 %", "0.4 %", "Tuned: one ramp opens") if t not in shown] == []


def test_status_as_json_is_what_the_controller_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [MODEL]


@pytest.mark.parametrize("name", ["vision", "default/vision"])
def test_exits_shows_each_ramp(name: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exits", name, "--url", url]) == 0
    shown = capsys.readouterr().out
    assert [
        text for text in ("revision 7", "block3", "0.2500", "50.0 %", "99.6 %", "1.23 ms") if text not in shown
    ] == []


def test_exits_of_an_unknown_model_names_those_there_are(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exits", "text", "--url", url]) == 2
    assert capsys.readouterr().err == "error: there is no model text; models are: default/vision\n"


def test_an_answer_that_is_no_success_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", f"{url}/elsewhere"]) == 1
    assert "404" in capsys.readouterr().err
