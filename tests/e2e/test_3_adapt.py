"""Real traffic through the Service: answers leave early, the plan follows, accuracy holds, and the median falls."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from apparate.cli.main import run
from support.e2e import DEMO, MODEL, PLAIN, TUTORIAL, Stage
from support.e2e_report import Report
from support.e2e_traffic import LEAST_AGREEMENT, Load

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def compared(serving: Stage, report: Report) -> dict[str, Any]:
    """What the Job `compare` found: the same slices to both models in turn, with nothing else under way."""
    serving.cluster.kubectl("delete", "job", "load", "compare", "-n", DEMO, "--ignore-not-found", "--timeout=60s")
    serving.patch({"serving": {"replicas": 2}}, PLAIN)
    serving.wait("the plain model is ready", lambda: serving.holds("Ready", "WorkersReady", name=PLAIN), within=180)
    serving.apply_file(TUTORIAL / "compare.yaml")
    serving.wait("the comparison is done", lambda: ended(serving), within=240)
    lines = [json.loads(one) for one in said(serving).splitlines() if one.startswith("{")]
    for line in lines:
        report.write(line)
    serving.cluster.kubectl("scale", f"eem/{PLAIN}", "-n", DEMO, "--replicas=0")  # its cores are wanted elsewhere
    assert lines and lines[-1]["kind"] == "compared", said(serving)
    found: dict[str, Any] = lines[-1]
    return found


def ended(stage: Stage) -> bool:
    pods = stage.pods(DEMO, "app=compare")
    return bool(pods) and pods[0].status.phase in ("Succeeded", "Failed")


def said(stage: Stage) -> str:
    return stage.cluster.kubectl("logs", "-n", DEMO, "-l", "app=compare", "--tail=-1")


def test_the_median_latency_is_below_the_plain_models(compared: dict[str, Any]) -> None:
    half = compared["second_half"]
    print(f"median {half['plain_p50_ms']:.2f} -> {half['exits_p50_ms']:.2f} ms, {half['early']:.0%} left early")
    assert half["exits_p50_ms"] < half["plain_p50_ms"], compared


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_answers_leave_early_over(protocol: str, compared: dict[str, Any]) -> None:
    assert compared[protocol]["early"] > 0.1, compared[protocol]


def test_every_request_of_both_models_is_answered(compared: dict[str, Any]) -> None:
    assert compared["all"]["failed"] == 0, compared["all"]["error"]


def test_answers_are_the_plain_models_but_for_the_budget(compared: dict[str, Any]) -> None:
    assert compared["all"]["agreement_worst_1000"] >= LEAST_AGREEMENT, compared["all"]


def test_the_plain_model_is_scaled_to_nothing_and_says_so(compared: dict[str, Any], stage: Stage) -> None:
    stage.wait("no workers are left", lambda: stage.condition("Ready", PLAIN)["reason"] == "ScaledToZero", within=90)


def test_plans_rise_and_are_delivered_and_the_status_fills(load: Load, stage: Stage) -> None:
    began, first = time.time(), stage.revision()
    told = ("PlanDelivered", "FeedbackFlowing", "AccuracyMet", "Ready")
    stage.wait("the plan changes with the traffic", lambda: stage.revision() > first, within=120)
    stage.wait("all is well", lambda: stage.holds(*told), within=60)
    status = stage.status()
    assert status["observed"]["exitRate"] > 0 and status["observed"]["accuracyLoss"]["samples"] > 500, status
    assert status["delivery"]["workers"] == 2 == status["delivery"]["updatedWorkers"], status["delivery"]
    assert status["plan"]["ramps"], f"{MODEL} has a plan without ramps: {status['plan']}"
    load.check(began)


def test_each_thousand_answers_are_the_plain_models_but_for_the_budget(load: Load) -> None:
    began = time.time()
    load.windows_after(began, 3, within=90)
    seen = load.check(began)
    assert {one["protocol"] for one in seen.seconds} == {"http", "grpc"}


def test_the_command_line_asks_the_controller_through_the_api_server(
    load: Load, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--kubeconfig", str(stage.cluster.kubeconfig), "-n", DEMO, "-o", "json"]
    assert run(["what-if", MODEL, *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["records"] > 0 and len(found["answers"]) == 5, found
    assert run(["history", MODEL, *where]) == 0
    assert json.loads(capsys.readouterr().out)[0]["times"] >= 1, "told by the object alone"
    run(["doctor", *where])  # the plain model, which is scaled to nothing, is a fault to it
    verdicts = {one["check"]: one["verdict"] for one in json.loads(capsys.readouterr().out)}
    wanted = ("CRD", "your rights", "pods of operator", "pods of controller", "controller")
    assert [verdicts.get(name) for name in wanted] == ["ok"] * len(wanted), verdicts
    leases = {name: verdict for name, verdict in verdicts.items() if name.startswith("lease ")}
    assert len(leases) >= 2 and set(leases.values()) == {"ok"}, verdicts
