"""The number of workers: by hand, by an autoscaler, and when the node has too few GPUs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from support import metrics_api
from support.e2e import DEMO, MODEL, Stage
from support.e2e_report import Report
from support.e2e_traffic import Load

pytestmark = pytest.mark.e2e
GPU = "nvidia.com/gpu"
HPA = {
    "kind": "hpa",
    "minReplicas": 2,
    "maxReplicas": 3,
    "targets": [{"metric": "inFlight", "value": 0.02}],
    "scaleDownStabilizationSeconds": 0,
}


def scale(stage: Stage, replicas: int) -> None:
    """As a user does it: through the scale subresource of the model."""
    stage.cluster.kubectl("scale", f"eem/{MODEL}", "-n", DEMO, f"--replicas={replicas}")


def settled(stage: Stage, workers: int) -> bool:
    """Whether so many workers serve, all of the newest kind, and the model says so."""
    there = stage.holds("WorkersReady", "Ready") and stage.status()["readyReplicas"] == workers
    return there and stage.rolled_out(f"{MODEL}-worker")


def test_kubectl_scale_adds_workers_that_run_the_plan_and_takes_them_away(
    load: Load, stage: Stage, report: Report
) -> None:
    with report.doing("scaled to 3 and back to 2") as mark:
        scale(stage, 3)
        # The API server was away just before: what makes pods and what places them each back off for up to a minute.
        stage.wait("three workers serve", lambda: settled(stage, 3), within=180)
        mark.over("three workers ready")
        runs = lambda: stage.holds("PlanDelivered") and stage.status()["delivery"]["workers"] == 3  # noqa: E731
        stage.wait("the third runs the plan", runs, within=60)
        mark.over("the third runs the plan in force")
        scale(stage, 2)
        stage.wait("two workers are left", lambda: settled(stage, 2), within=90)
        stage.wait("the third has ended", lambda: len(stage.all_workers()) == 2, within=60)
    load.check(mark.begin)


@pytest.fixture
def metrics(stage: Stage) -> Iterator[None]:
    """The custom metrics API, by a stand-in for prometheus-adapter that asks the workers themselves."""
    with metrics_api.served(stage):
        yield


def test_an_autoscaler_follows_the_published_metric_and_hands_back(
    load: Load, stage: Stage, metrics: None, report: Report
) -> None:
    with report.doing("autoscaled by requests in flight") as mark:
        stage.patch({"autoscaling": HPA})
        stage.wait("the autoscaler adds a worker", lambda: settled(stage, 3), within=150)
        mark.over("a third worker is ready")
        stage.patch({"autoscaling": {**HPA, "targets": [{"metric": "inFlight", "value": 1000}]}})
        stage.wait("the autoscaler takes it away", lambda: settled(stage, 2), within=120)
        stage.patch({"autoscaling": None})
        gone = lambda: not stage.cluster.get("hpa", "-n", DEMO)["items"]  # noqa: E731
        stage.wait("the autoscaler is gone and two workers stay", lambda: gone() and settled(stage, 2), within=60)
    load.check(mark.begin)


@pytest.fixture
def gpus(stage: Stage) -> Iterator[None]:
    """Workers that ask for a GPU each, on a node that has two; afterwards as before."""
    yield
    stage.patch({"serving": {"gpu": None, "replicas": 2, "template": None}})
    stage.wait("two workers without a GPU serve", lambda: settled(stage, 2), within=180)


def test_a_gpu_too_many_is_pending_and_named_and_a_rollout_without_a_spare_one_ends(
    load: Load, stage: Stage, gpus: None, report: Report
) -> None:
    with report.doing("workers that ask for GPUs") as mark:
        stage.patch({"serving": {"gpu": {"count": 1}}})
        stage.wait("two workers with a GPU each serve", lambda: holding(stage) == 2 and settled(stage, 2), within=180)
        mark.over("two workers with a GPU each")
        scale(stage, 3)
        stage.wait("the third is missed", lambda: GPU in stage.condition("WorkersReady")["message"], within=60)
        mark.over("the condition names the GPU")
        lacks = stage.condition("WorkersReady")
        assert lacks["status"] == "False" and lacks["reason"] == "Unschedulable", lacks
        assert [pod.status.phase for pod in stage.workers()].count("Pending") == 1
        scale(stage, 2)
        stage.wait("two are enough again", lambda: settled(stage, 2), within=60)
        before = {pod.metadata.uid for pod in stage.workers()}
        stage.patch({"serving": {"template": {"annotations": {"rolled": f"{time.time():.0f}"}}}})
        news = lambda: not before & {pod.metadata.uid for pod in stage.workers()}  # noqa: E731
        stage.wait("the rollout ends", lambda: news() and settled(stage, 2), within=180)
        mark.over("a rollout with all GPUs taken")
        stage.wait("the old ones have ended", lambda: stage.ended(before), within=60)
        assert holding(stage) == 2
    load.check(mark.begin)


def holding(stage: Stage) -> int:
    """Workers that run and have a GPU."""
    limits = [pod.spec.containers[0].resources.limits or {} for pod in stage.workers() if pod.status.phase == "Running"]
    return sum(GPU in one for one in limits)
