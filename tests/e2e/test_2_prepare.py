"""From `kubectl apply` to a model that serves."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.e2e import MODEL, Stage
from support.e2e_report import Recorder

pytestmark = pytest.mark.e2e


@pytest.fixture
def fresh(applied: Stage, example: dict[str, Any]) -> Stage:
    """The example as it is applied for the first time: one that an earlier run left is deleted before."""
    if applied.kept_model:
        applied.cluster.kubectl("delete", "eem", MODEL, "-n", "demo", "--timeout=60s")
        applied.cluster.kubectl(
            "wait", "pod", "-n", "demo", "-l", f"apparate.dev/model={MODEL}", "--for=delete", "--timeout=60s"
        )
        applied.cluster.apply(example, namespace="demo")
        applied.kept_model = False
    return applied


def test_it_is_prepared_then_has_workers_then_is_ready(fresh: Stage, recorder: Recorder) -> None:
    fresh.wait("the model is ready", lambda: fresh.holds("Prepared", "WorkersReady", "Ready"), within=240)
    fresh.wait("that was recorded", lambda: came_true(recorder, "Ready"), within=10)
    since = {one["type"]: one["lastTransitionTime"] for one in fresh.status()["conditions"]}
    assert since["Prepared"] <= since["WorkersReady"] <= since["Ready"], since
    assert came_true(recorder, "Prepared") < came_true(recorder, "WorkersReady") + 1e-3
    assert len(fresh.workers()) == 2


def test_the_progress_of_its_preparation_could_be_followed(fresh: Stage, serving: Stage, recorder: Recorder) -> None:
    said = [message for _, status, _, message in recorder.of(MODEL, "Prepared") if status == "False"]
    shares = [int(found[1]) for one in said if (found := re.search(r"(\d+)%$", one))]
    assert len(set(shares)) >= 2, said


def came_true(recorder: Recorder, condition: str) -> float:
    """When a condition of the model last became True; 0 when it has not."""
    return max((when for when, status, _, _ in recorder.of(MODEL, condition) if status == "True"), default=0.0)
