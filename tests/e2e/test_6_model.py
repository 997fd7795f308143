"""Another model in the place of the one that serves, and one that is damaged."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from support.e2e import DEMO, MODEL, Stage
from support.e2e_report import Recorder, Report
from support.e2e_traffic import Load

pytestmark = pytest.mark.e2e
FOLDER = "pvc://datasets/person"
FIRST, SHARPER, DAMAGED = (f"{FOLDER}/{name}.safetensors" for name in ("model", "sharper", "damaged"))


def serves(stage: Stage) -> str:
    """The revision of the model that all workers serve."""
    there = stage.deployment(f"{MODEL}-worker").spec.template.metadata.annotations
    return str(there["apparate.dev/revision"])


def test_another_model_is_prepared_beside_the_running_one_and_takes_over_without_an_error(
    load: Load, stage: Stage, recorder: Recorder, report: Report
) -> None:
    old, was = serves(stage), stage.model()["spec"]["model"]["source"]
    with report.doing("another model") as mark:
        stage.patch({"model": {"source": FIRST if was == SHARPER else SHARPER}})
        stage.wait("it is being prepared", lambda: stage.condition("Prepared")["status"] == "False", within=30)
        assert stage.condition("Ready")["status"] == "True", "the old one serves meanwhile"
        assert serves(stage) == old
        stage.wait("it is prepared", lambda: stage.holds("Prepared"), within=180)
        mark.over("it is prepared")
        new = lambda: serves(stage) != old and stage.rolled_out(f"{MODEL}-worker")  # noqa: E731
        stage.wait("workers serve it", lambda: new() and stage.holds("Ready", "WorkersReady"), within=150)
        mark.over("all workers serve it")
        ready = [status for when, status, _, _ in recorder.of(MODEL, "Ready") if when >= mark.begin]
        stage.wait("a plan of its own is delivered", lambda: plan_fits(stage) and exits_open(stage), within=150)
        mark.over("answers leave early again")
    assert "False" not in ready, recorder.of(MODEL, "Ready")
    load.check(mark.begin)


def plan_fits(stage: Stage) -> bool:
    """Whether the plan in force is of the catalog that is served, and all workers run it."""
    status = stage.status()
    return status["plan"]["catalog"] == status["catalog"]["digest"] and stage.holds("PlanDelivered")


def exits_open(stage: Stage) -> bool:
    """Whether the plan lets anybody go."""
    return any(one["threshold"] > 0 for one in stage.status()["plan"].get("ramps", ()))


@pytest.fixture
def source(stage: Stage) -> Iterator[str]:
    """The model that is wanted; also when the test ends early, so that a second try begins as the first did."""
    was = str(stage.model()["spec"]["model"]["source"])
    yield was
    stage.patch({"model": {"source": was}})


def test_a_damaged_model_is_told_and_the_old_one_serves_on(
    load: Load, stage: Stage, source: str, report: Report
) -> None:
    old = serves(stage)
    workers = {pod.metadata.uid for pod in stage.workers()}
    with report.doing("a damaged model") as mark:
        stage.patch({"model": {"source": DAMAGED}})
        told = lambda: (c := stage.condition("Prepared"))["status"] == "False" and c["reason"] != "Preparing" and c  # noqa: E731
        why = stage.wait("the condition says why", told, within=150)
        mark.over("the condition says why")
        assert "damaged.safetensors" in why["message"], why
        assert stage.condition("Ready")["status"] == "True" and serves(stage) == old
        assert {pod.metadata.uid for pod in stage.workers()} == workers
        stage.patch({"model": {"source": source}})
        stage.wait("the model of before is wanted again", lambda: stage.holds("Prepared", "Ready"), within=60)
        mark.over("it is mended without a restart")
        assert {pod.metadata.uid for pod in stage.workers()} == workers
    load.check(mark.begin)


def test_answers_of_all_faults_together_were_within_budget(load: Load) -> None:
    load.windows_after(time.time() - 60, 1, within=60)
    load.check_accuracy()


def test_claims_do_not_fill_up_with_models_that_nobody_uses(stage: Stage) -> None:
    jobs = stage.cluster.get("jobs", "-n", DEMO, "-l", f"apparate.dev/model={MODEL}")["items"]
    assert len(jobs) <= 2, [one["metadata"]["name"] for one in jobs]
