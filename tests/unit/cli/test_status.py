"""What the commands say of a model, and ask for, against a controller that is played by a small HTTP server."""

from __future__ import annotations

import getpass
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from apparate.adaptation import policy
from apparate.cli.errors import CommandError
from apparate.cli.main import run
from apparate.cli.status import OF_PAUSING, UNREMARKABLE, news, row
from apparate.cli.tables import table
from apparate.cli.target import asker
from apparate.cli.target_cluster import ClusterTarget
from apparate.contract.conditions import Reason
from apparate.service.kube import KubeError

MODEL: dict[str, Any] = {
    "namespace": "default",
    "name": "vision",
    "plan": {"revision": 7, "ramps": [{"ramp": 2, "layer": "block3", "threshold": 0.25}]},
    "delivery": {"revision": 7, "workers": 2, "updatedWorkers": 1},
    "window": {"records": 512, "size": 8192},
    "observed": {"samples": 512, "exitRate": 0.5, "loss": 0.004, "saving": 0.31},
    "budget": {"accuracyLoss": 0.013, "rampOverhead": 0.02, "confidence": 0.95},
    "ramps": [{"ramp": 2, "layer": "block3", "threshold": 0.25, "exitRate": 0.5, "agreement": 0.996, "savedMs": 1.234}],
    "decisions": [{"reason": "Tuned", "message": "one ramp opens"}],
}
OLD = {"revision": 4, "ramps": [], "reason": "Started", "message": "2 ramps report"}
NOW = {"revision": 7, "records": 512, "loss": 0.021, "saving": 0.29, "exitRate": 0.47}
ANSWERS = {
    "/v1/models": {"models": [{"namespace": "default", "name": "vision"}]},
    "/v1/models/default/vision": MODEL,
    "/v1/models/default/vision/plans": [OLD],
    "/v1/models/default/vision/plans/replayed": {"plans": [NOW]},
}
asked: list[tuple[str, str, Any]] = []


class Controller(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = ANSWERS.get(self.path)
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def do_PUT(self) -> None:
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append((self.command, self.path, wanted))
        bad = wanted.get("revision") == 5
        self.send_response(409 if bad else 200)
        self.end_headers()
        answer = {"detail": "plan revision 5 is not in the history; there are: 4"} if bad else {"revision": 8}
        self.wfile.write(json.dumps(answer).encode())

    do_POST = do_PUT

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    asked.clear()
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


PAUSED = {"paused": True, "pausedSince": "2026-01-01T00:00:00Z", "pausedBy": "alice@desk"}


def test_status_shows_the_budget_and_what_the_figures_mean(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", url]) == 0
    shown = capsys.readouterr().out
    assert "1.3 %" in shown
    assert "loss: share of answers that differ from the model's own, as it happened" in shown
    assert "budget: loss that is allowed" in shown
    for command in ("status", "exits", "history", "what-if"):
        assert run([command, "--help"]) == 0
        told = " ".join(capsys.readouterr().out.replace("│", "").split())
        assert "come sooner" in told or "comes sooner" in told, command


def test_a_legend_is_only_under_a_table(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exits", "vision", "--url", url, "-o", "yaml"]) == 0
    assert "share of" not in capsys.readouterr().out


def test_a_paused_model_says_since_when_and_by_whom_beside_live_figures() -> None:
    paused = {**MODEL, **PAUSED, "decisions": [{"reason": "PausedByHand", "message": "stays"}, *MODEL["decisions"]]}
    assert row(paused)[1:] == ("7 paused", "1/2", "1", "50.0 %", "0.4 %", "1.3 %", "31.0 %", "512/8192")
    first, second = list(news(paused))
    assert first.startswith("paused since 2026-01-01T00:00:00Z, by alice@desk: ")
    assert second == "Tuned: one ramp opens"


def test_a_resumed_model_says_so_beside_why_its_plan_is_what_it_is() -> None:
    resumed = {**MODEL, "decisions": [{"reason": "ResumedByHand", "message": "goes on"}, *MODEL["decisions"]]}
    assert list(news(resumed)) == ["ResumedByHand: goes on", "Tuned: one ramp opens"]


def test_zeros_that_nobody_saw_are_not_shown() -> None:
    nothing = {**MODEL, "observed": {"samples": 0, "exitRate": 0.0, "loss": 0.0, "saving": 0.0}}
    assert row(nothing)[4:8] == ("", "", "1.3 %", "")


def test_status_says_what_is_wrong_and_what_cannot_be_known_but_not_that_nobody_asks() -> None:
    conditions = [
        {"type": "Ready", "status": "True", "reason": "Ready", "message": "2 of 2 workers ready"},
        {"type": "PlanDelivered", "status": "False", "reason": "PlanRefused", "message": "w refused it"},
        {"type": "FeedbackFlowing", "status": "Unknown", "reason": "RedisUnreachable", "message": "no answer"},
        {"type": "AccuracyMet", "status": "Unknown", "reason": "NotEnoughFeedback", "message": "0 answers"},
    ]
    assert list(news({**MODEL, "conditions": conditions})) == [
        "Tuned: one ramp opens",
        "not PlanDelivered: PlanRefused: w refused it",
        "FeedbackFlowing is not known: RedisUnreachable: no answer",
    ]


def test_unremarkable_reasons_are_those_of_conditions() -> None:
    assert set(UNREMARKABLE) == {Reason.NO_TRAFFIC, Reason.TOO_FEW_RECORDS}
    assert set(OF_PAUSING) == {policy.Reason.PAUSED_BY_HAND, policy.Reason.RESUMED_BY_HAND}


def test_status_as_json_is_what_the_controller_said(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", url, "-o", "json"]) == 0
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


def test_feedback_that_nobody_can_use_and_plans_that_workers_refuse_are_told() -> None:
    worker = {"name": "w1", "refused": "plan is for another catalog", "refusedRevision": 8}
    told = list(news({**MODEL, "workers": [worker], "feedback": {"refused": 884}}))
    assert "w1 refuses plan revision 8: plan is for another catalog" in told
    assert any("884 entries of feedback could not be used" in line for line in told)
    mended = {**MODEL, "delivery": {"workers": 2, "updatedWorkers": 2}, "feedback": {"refused": 884}}
    assert not any("could not be used" in line for line in news(mended))


def test_a_model_without_active_ramps_says_why(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    idle = {**MODEL, "ramps": [], "decisions": [{"reason": "Started", "message": "no ramp fits the ramp overhead"}]}
    ANSWERS["/v1/models/default/vision"] = idle
    try:
        assert run(["exits", "vision", "--url", url]) == 0
    finally:
        ANSWERS["/v1/models/default/vision"] = MODEL
    assert "no ramp is active: Started: no ramp fits" in capsys.readouterr().out


def test_an_answer_that_is_no_success_is_told(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", f"{url}/elsewhere"]) == 1
    assert "404" in capsys.readouterr().err


def test_plan_shows_the_one_in_force_and_those_before_it(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "vision", "--url", url, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [MODEL["plan"] | {"onWindow": NOW}, OLD | {"onWindow": None}]


def test_plan_as_a_table_names_reasons_and_thresholds(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "vision", "--url", url]) == 0
    shown = capsys.readouterr().out
    wanted = ("2 < 0.2500", "Started", "none", "would lose", "2.1 %", "29.0 %", "47.0 %", "512", "would lose: share of")
    assert [text for text in wanted if text not in shown] == []


def test_plans_are_told_where_nobody_can_say_what_they_would_do_now(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ANSWERS, "/v1/models/default/vision/plans/replayed")
    assert run(["plan", "vision", "--url", url]) == 0
    shown = capsys.readouterr()
    assert "2 < 0.2500" in shown.out
    assert "what each plan would do on today's window is not known: " in shown.err


def test_what_happened_and_what_would_have_are_told_apart(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--url", url]) == 0
    assert "exits: share of answers that left early, as it happened" in capsys.readouterr().out
    assert run(["exits", "vision", "--url", url]) == 0
    assert "would exit: share of the window's answers that would have left early" in capsys.readouterr().out


def test_what_if_says_why_there_is_no_answer_instead_of_an_empty_table(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = {"records": 0, "problem": "nothing is known", "loss": None, "saving": None, "exitRate": None}
    question = "/v1/models/default/vision/what-if?accuracyLoss=0.013&accuracyLoss=0.02&rampOverhead=0.2"
    monkeypatch.setitem(ANSWERS, question, {**nothing, "answers": []})
    assert run(["what-if", "vision", "--budget", "0.02", "--ramp-overhead", "0.2", "--url", url]) == 0
    assert capsys.readouterr().out == "default/vision: nothing is known\n"


@pytest.mark.parametrize(("command", "paused"), [("pause", True), ("resume", False)])
def test_pause_and_resume_ask_the_controller(command: str, paused: bool, url: str) -> None:
    assert run([command, "vision", "--url", url]) == 0
    assert asked == [("PUT", "/v1/models/default/vision/paused", {"paused": paused, "by": asker()})]


def test_rollback_asks_the_controller_and_tells_the_new_revision(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollback", "vision", "4", "--url", url]) == 0
    assert asked == [("POST", "/v1/models/default/vision/rollback", {"revision": 4, "by": asker()})]
    assert "revision 4 is in force again, as 8" in capsys.readouterr().out


def test_rollback_without_a_revision_names_those_there_are_and_where_to_look(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["rollback", "vision", "--url", url]) == 2
    told = capsys.readouterr().err
    assert "REVISION is missing; of default/vision there are: 4; `apparate plan vision` tells" in told
    assert asked == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["pause", "vision"], {"namespace": "default", "name": "vision", "revision": 7, "paused": None}),
        (["rollback", "vision", "4"], {"revision": 8}),
    ],
)
def test_what_was_done_can_be_had_as_json(argv, told, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*argv, "--url", url, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out).items() >= told.items()


def test_who_asks_is_somebody_on_some_machine_also_where_a_user_has_no_name(monkeypatch) -> None:
    assert "@" in asker()
    monkeypatch.setattr(getpass, "getuser", nobody)
    assert asker().startswith(f"user {os.getuid()}@")


def nobody() -> str:
    raise KeyError("getpwuid(): uid not found: 1000")


def test_a_plan_that_cannot_be_had_again_is_bad_input(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollback", "vision", "5", "--url", url]) == 2
    assert capsys.readouterr().err == "error: plan revision 5 is not in the history; there are: 4\n"


class WithoutOurResource:
    """An API server that has never heard of EarlyExitModels."""

    def call(self, method: str, path: str, **_: object) -> Any:
        raise KubeError(404, f"{method} {path}: 404 404 page not found")


def test_a_cluster_without_the_chart_is_told_by_name() -> None:
    target = ClusterTarget(WithoutOurResource(), "default")
    for ask in (target.views, lambda: target.view("vision")):
        with pytest.raises(CommandError, match="has no EarlyExitModels; install the chart first"):
            ask()


def test_a_table_that_goes_into_a_pipe_is_whole(capsys):
    long = ["a-namespace-of-a-length-that-happens/a-model-of-a-length-that-happens", "x" * 300, "[red]not markup[/red]"]
    table("Models", ("model", "why", "more"), [tuple(long), ("b", "c", "d")])
    lines = capsys.readouterr().out.splitlines()
    assert all(any(word in line for line in lines) for word in long)
    assert len(lines) == 7 and len({len(line) for line in lines[1:]}) == 1
