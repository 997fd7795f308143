"""Alerts in earnest: worker, controller and Redis at work, a real Prometheus that scrapes them, a real Alertmanager.

The rules are the chart's own, with seconds in the place of minutes.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from apparate.contract.metrics import CONTROLLER, WORKER, Metric
from apparate_cluster.prometheus import Server, a_prometheus, an_alertmanager
from apparate_dashboards.draw import draw
from apparate_dashboards.pages import Span, ask, read
from support.eventually import eventually
from support.infer import URL, json_body
from support.models import items, write_prepared
from support.processes import Process, a_process
from support.promql import SUFFIXES
from support.redis import RedisServer, a_redis_server

pytestmark = [pytest.mark.redis, pytest.mark.prometheus, pytest.mark.timeout(300)]
FILES = Path(__file__).resolve().parents[2] / "charts/apparate/files"
RULES, DASHBOARDS = FILES / "alerts", sorted((FILES / "dashboards").glob("*.json"))
LOCAL = ("accuracy", "latency", "feedback", "controller", "redis")
GAP_S = 0.005
SOMETIMES = {
    "apparate_plans_refused": "a worker refuses a plan",
    "apparate_gpu_memory_bytes": "the worker has a GPU",
    "apparate_refused_requests": "more comes than can be served",
    "apparate_pressure": "more comes than can be served",
    "apparate_cache_hits": "answers are kept",
    "apparate_cache_misses": "answers are kept",
    "apparate_cache_bytes": "answers are kept",
    "apparate_pressure_entries": "more comes than can be served",
    "apparate_feedback_refused": "feedback cannot be used",
    "apparate_controller_errors": "something fails",
    "apparate_controller_kubernetes_errors": "it runs on Kubernetes",
    "apparate_status_writes": "it runs on Kubernetes",
}
"""Metrics without a sample until something happens."""


WITHOUT_DATA = {
    "Certificate ends in",
    "Conditions",
    "Failures of the controller",
    "Memory of GPUs",
    "Not as it should be",
    "Plans that workers refused",
    "Pressure",
    "Refused by the controller",
    "Refused, by class and reason",
    "Stages of pressure begun",
    "Thresholds",
    "Workers",
    "Writes of statuses",
}
"""Panels that need an operator, a GPU, TLS, an open exit, or something to go wrong."""


@dataclass
class Installation:
    """What runs, and who watches it."""

    redis: RedisServer
    worker: Process
    controller: Process
    prometheus: Server
    alertmanager: Server

    def firing(self) -> set[str]:
        """Names of the alerts that Alertmanager has."""
        return {one["labels"]["alertname"] for one in self.alertmanager.ask("/api/v2/alerts", active="true")}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """All of it, with traffic that goes on."""
    folder = tmp_path_factory.mktemp("alerts")
    slo = {"latencyMs": 5000}
    document = write_prepared(folder, serving={"drainSeconds": 5, "device": "cpu", "slo": slo})
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(a_redis_server())
        worker = {"DOCUMENT": str(document), "HTTP_PORT": "0", "GRPC_PORT": "0", "REDIS_URL": redis.url}
        controller = {"DOCUMENTS": str(document), "PORT": "0", "REDIS_URL": redis.url}
        processes, hosts = [], {}
        for name, settings in (("worker", worker), ("controller", controller)):
            environ = {f"EEM_{name.upper()}_{key}": value for key, value in settings.items()}
            processes.append(stack.enter_context(a_process([sys.executable, "-m", f"apparate_{name}"], environ)))
        for name, process in zip(("worker", "controller"), processes, strict=True):
            hosts[name] = [address(process)]
        alertmanager = stack.enter_context(an_alertmanager(folder))
        rules = [quick(name, folder) for name in LOCAL]
        prometheus = stack.enter_context(
            a_prometheus(folder, hosts, rules=rules, alertmanager=alertmanager.url, every="500ms")
        )
        stack.enter_context(traffic(hosts["worker"][0]))
        yield Installation(redis, *processes, prometheus, alertmanager)


def address(process: Process) -> str:
    """Where a service listens, once it is ready."""

    def said() -> list[str]:
        if process.popen.poll() is not None:
            pytest.fail(f"it ended: {process.err[-5:]}")
        return process.out

    return str(json.loads(eventually(said, within=60)[0])["http"])


def quick(name: str, folder: Path) -> Path:
    """A rule file that looks back and waits for seconds."""
    text = (RULES / f"{name}.yaml").read_text()
    text = re.sub(r"\[\d+[mh]\]", "[4s]", text)
    text = re.sub(r"for: \d+[mh]", "for: 1s", text)
    path = folder / f"{name}.yaml"
    path.write_text(re.sub(r"offset \d+m", "offset 4s", text))
    return path


@contextlib.contextmanager
def traffic(host: str) -> Iterator[None]:
    """Requests one after the other until the block ends."""
    stop = threading.Event()
    bodies = [json.dumps(json_body(row[None])).encode() for row in items(64)]

    def send() -> None:
        for number in range(10**9):
            if stop.wait(GAP_S):
                return
            request = urllib.request.Request(f"http://{host}{URL}", bodies[number % len(bodies)], method="POST")
            with urllib.request.urlopen(request, timeout=20) as answer:
                answer.read()

    thread = threading.Thread(target=send, name="traffic", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def without_a_sample(server: Server, job: str, metrics: tuple[Metric, ...]) -> set[str]:
    """Metrics that a job is meant to show and does not."""
    names = {one["metric"]["__name__"] for one in server.query(f'{{job="{job}", __name__=~"apparate_.*"}}')}
    return {m.name for m in metrics if not any(m.name + suffix in names for suffix in SUFFIXES[m.kind])}


def test_every_declared_metric_is_shown_by_the_services(running: Installation) -> None:
    def shown() -> bool:
        found = without_a_sample(running.prometheus, "worker", WORKER)
        found |= without_a_sample(running.prometheus, "controller", CONTROLLER)
        assert found - set(SOMETIMES) == set()
        return True

    eventually(shown, within=90)


def test_what_was_observed_makes_sense(running: Installation) -> None:
    def ask(expr: str) -> float:
        return float(running.prometheus.query(expr)[0]["value"][1])

    eventually(lambda: ask("sum(apparate_feedback_records_total)") > 100, within=30)
    for same in ("apparate_release_seconds_count", "apparate_plain_seconds_count"):  # in the same scrape
        assert abs(ask(f"sum(apparate_exits_total) - sum({same})")) <= 100
    assert 0 < ask("sum(apparate_plain_seconds_sum)") < 10 * ask("sum(apparate_release_seconds_sum)")
    assert ask("sum(apparate_slo_answers_total)") > 0 and ask("sum(apparate_slo_late_answers_total)") == 0
    assert ask("sum(apparate_segment_seconds_count)") > 0
    assert ask("apparate_slo_seconds") == 5 and ask("apparate_slo_target_ratio") == 0.99
    assert 0 <= ask("apparate_feedback_age_seconds") < 30
    assert ask("apparate_redis_up") == 1 and ask("apparate_redis_used_memory_bytes") > 1e5


def test_nothing_fires_while_all_is_well(running: Installation) -> None:
    eventually(lambda: running.prometheus.query("rate(apparate_feedback_records_total[4s]) > 0"), within=30)

    def quiet() -> bool:
        time.sleep(2)  # as long as any rule here waits, and more
        return running.firing() <= {"ApparateLatencyWorseThanPlain"}  # this model's profile is made up

    eventually(quiet, within=40)  # rules that wait for a second hear of every hiccup of a busy machine


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_asks_what_prometheus_can_answer_and_is_drawn(
    running: Installation, path: Path, tmp_path: Path
) -> None:
    now = time.time()
    span = Span(now - 20, now)
    page = ask(running.prometheus, read(path), span, {"namespace": ".*", "model": "tiny", "rate_interval": "4s"})
    empty = {one.panel["title"] for one in page.panels if one.empty}
    assert empty <= WITHOUT_DATA | {
        one.panel["title"] for one in page.panels if "operator" in str(one.panel["targets"])
    }
    draw(page, span, tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_a_redis_that_dies_is_told_and_told_to_be_over(running: Installation) -> None:
    running.redis.kill9()
    try:
        eventually(lambda: {"ApparateFeedbackStalled"} <= running.firing(), within=90)
    finally:
        running.redis.start()
    eventually(lambda: "ApparateFeedbackStalled" not in running.firing(), within=90)


def test_a_controller_that_dies_is_told(running: Installation) -> None:
    running.controller.popen.kill()
    eventually(lambda: "ApparateControllerDown" in running.firing(), within=90)
    told = next(
        one
        for one in running.alertmanager.ask("/api/v2/alerts")
        if one["labels"]["alertname"] == "ApparateControllerDown"
    )
    assert told["annotations"]["summary"] == "No controller adapts the early-exit models"
    assert told["annotations"]["runbook_url"] == "docs/runbooks/ApparateControllerDown.md"
