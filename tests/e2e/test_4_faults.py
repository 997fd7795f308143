"""Each part is killed under traffic: clients notice nothing, accuracy holds, and the loop goes on by itself."""

from __future__ import annotations

import time
from typing import Any

import pytest

from support.e2e import DEMO, MODEL, SYSTEM, Stage
from support.e2e_report import Report
from support.e2e_traffic import Line, Load
from support.node import Node

pytestmark = pytest.mark.e2e
DYING_S = 0.5  # until the kernel has taken a killed process apart and closes its connections
LOOP_WITHIN_S = 150  # a Lease runs out, feedback gathers, and the status is written at most every 30 s


def words(stage: Stage) -> tuple[int, Any]:
    """What the controller last said: changes as long as the loop turns."""
    status = stage.status()
    return stage.revision(), status.get("observed")


def loop_turns(stage: Stage, before: tuple[int, Any]) -> bool:
    """Whether the controller has said something new, and feedback flows."""
    return words(stage) != before and stage.condition("FeedbackFlowing")["status"] == "True"


def delete_pods(stage: Stage, component: str) -> set[str]:
    """Kill the pods of a component at once; their uids."""
    gone = stage.component(component)
    for pod in gone:
        stage.cluster.kubectl("delete", "pod", pod.metadata.name, "-n", SYSTEM, "--grace-period=0", "--force")
    return {pod.metadata.uid for pod in gone}


def replaced(stage: Stage, component: str, gone: set[str]) -> bool:
    """Whether a new pod is ready."""
    return stage.ready(component) and not gone & {pod.metadata.uid for pod in stage.component(component)}


def lose(stage: Stage, load: Load, report: Report, component: str, what: str) -> None:
    """Kill a component's pod and wait until the loop turns again; nobody may have noticed."""
    with report.doing(what) as mark:
        gone = delete_pods(stage, component)
        stage.wait(f"{component} is ready again", lambda: replaced(stage, component, gone), within=90)
        mark.over("its pod is ready")
        before = words(stage)
        stage.wait("the loop turns again", lambda: loop_turns(stage, before), within=LOOP_WITHIN_S)
        mark.over("the controller decides anew")
    load.check(mark.begin)


def test_the_controller_is_killed(load: Load, stage: Stage, report: Report) -> None:
    lose(stage, load, report, "controller", "controller killed")


def test_redis_is_killed_and_has_lost_its_data(load: Load, stage: Stage, report: Report) -> None:
    stage.install()  # the default: nothing is kept
    lose(stage, load, report, "redis", "Redis killed, data lost")


def test_redis_is_killed_and_keeps_its_data(load: Load, stage: Stage, report: Report) -> None:
    stage.install("--set", "redis.persistence.enabled=true", "--set", "redis.persistence.size=100Mi")
    assert redis(stage, "config", "set", "appendfsync", "always") == "OK"
    assert redis(stage, "set", "e2e", "kept") == "OK"
    lose(stage, load, report, "redis", "Redis killed, data kept")
    assert redis(stage, "get", "e2e") == "kept"


def redis(stage: Stage, *command: str) -> str:
    """What redis-cli says in the pod."""
    return stage.cluster.kubectl("exec", "-n", SYSTEM, "deploy/apparate-redis", "--", "redis-cli", *command).strip()


def test_the_operator_is_killed_and_catches_up(load: Load, stage: Stage, report: Report) -> None:
    with report.doing("operator killed") as mark:
        gone = delete_pods(stage, "operator")
        tries = stage.model()["spec"].get("prepare", {}).get("backoffLimit", 2)
        generation = stage.patch({"prepare": {"backoffLimit": 3 if tries == 2 else 2}})  # while there is none
        stage.wait("the operator is ready again", lambda: replaced(stage, "operator", gone), within=90)
        mark.over("its pod is ready")
        stage.wait("it has seen the change", lambda: stage.status()["observedGeneration"] >= generation, within=90)
        mark.over("it acts on what changed meanwhile")
    load.check(mark.begin)


def test_a_worker_is_killed_and_only_what_it_had_in_hand_is_lost(load: Load, stage: Stage, report: Report) -> None:
    victim = stage.workers()[0]
    with report.doing("worker killed (SIGKILL)") as mark:
        stage.kill(victim, "apparate_worker")
        killed = time.time()
        stage.wait("it is missed", lambda: len(ready_workers(stage)) == 1, within=30)
        stage.wait("two workers are ready again", lambda: len(ready_workers(stage)) == 2, within=90)
        mark.over("two workers ready")
        stage.wait("both run the plan", lambda: stage.holds("PlanDelivered", "WorkersReady"), within=60)
        mark.over("both run the plan in force")

    def in_hand(failure: Line) -> bool:
        return bool(failure["sent"] <= killed + DYING_S and failure["done"] >= mark.begin)

    load.check(mark.begin, allow=in_hand)
    lost = [one for one in load.since(mark.begin - 10).failures if in_hand(one)]
    assert len(lost) <= 32, f"{len(lost)} requests were lost with the worker: {lost[:3]}"


def ready_workers(stage: Stage) -> list[str]:
    """Names of the workers that a Service sends requests to."""
    return [
        pod.metadata.name
        for pod in stage.workers()
        if pod.status.container_statuses and pod.status.container_statuses[0].ready
    ]


def test_workers_are_replaced_one_by_one_without_an_error(load: Load, stage: Stage, report: Report) -> None:
    olds = {pod.metadata.uid for pod in stage.workers()}
    with report.doing("workers rolled") as mark:
        stage.patch({"serving": {"template": {"annotations": {"rolled": f"{time.time():.0f}"}}}})
        news = lambda: not olds & {pod.metadata.uid for pod in stage.workers()}  # noqa: E731
        stage.wait("all workers are new", lambda: news() and stage.rolled_out(f"{MODEL}-worker"), within=150)
        mark.over("all workers are new")
        stage.wait("they run the plan", lambda: stage.holds("PlanDelivered", "WorkersReady", "Ready"), within=60)
        mark.over("they run the plan in force")
        stage.wait("the old ones have ended", lambda: stage.ended(olds), within=60)
    load.check(mark.begin)


def test_the_api_server_is_away_for_half_a_minute(load: Load, stage: Stage, node: Node, report: Report) -> None:
    with report.doing("API server away for 30 s") as mark:
        node.restart_api_server(seconds_down=30)
        mark.over("it answers again (30 s of it away)")
        before = words(stage)
        stage.wait("the loop turns again", lambda: loop_turns(stage, before), within=LOOP_WITHIN_S)
        mark.over("the controller decides anew")
        stage.wait("all is well", lambda: stage.holds("PlanDelivered", "WorkersReady", "Ready"), within=60)
        mark.over("all conditions hold")
    load.check(mark.begin)
    assert stage.cluster.kubectl("get", "pods", "-n", DEMO, "-o", "name")
