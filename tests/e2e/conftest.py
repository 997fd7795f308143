"""One cluster, one release, one model and one load generator for all end-to-end tests, in the order of their files.

A fixture brings about what its test builds on, and leaves what is there: so a test can be run alone on a kept cluster
(`make test-e2e ARGS="-k redis"`).
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.e2e import DEMO, MODEL, PLAIN, SYSTEM, TUTORIAL, Stage
from support.e2e_report import Recorder, Report
from support.e2e_traffic import Load
from support.kube import ROOT
from support.node import Node, a_node

REPORT = pytest.StashKey[Report]()
STAGE = pytest.StashKey[Stage]()
IMAGES = ROOT / ".cache" / "images"
EXAMPLE = ROOT / "examples" / "person.yaml"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(420))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    outcome = yield
    stage = item.config.stash.get(STAGE, None)
    if stage is not None and outcome.failed and call.when != "teardown":
        folder = item.config.stash[REPORT].collect(stage, item.name)
        outcome.sections.append(("what the cluster looked like", f"logs, events and descriptions are in {folder}"))
    return outcome


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    report = config.stash.get(REPORT, None)
    if report is not None and (rows := report.table()):
        terminalreporter.section("times to recovery")
        for row in rows:
            terminalreporter.write_line(row)
        terminalreporter.write_line(f"the story of this run: {report.folder / 'story.jsonl'}")


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    """Where this run leaves what it saw."""
    made = Report(ROOT / "out" / "e2e" / time.strftime("%Y-%m-%dT%H-%M-%S"))
    pytestconfig.stash[REPORT] = made
    return made


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """The cluster with pods: the one that `make cluster-up` left running, or one of this session's own."""
    with a_node() as node:
        yield node


@pytest.fixture(scope="session")
def images(node: Node) -> None:
    """The images of this checkout are on the node."""
    archives = sorted(IMAGES.glob("*.tar"), key=lambda one: int(one.name.partition("-")[0]))  # in the order to load
    assert archives, f"{IMAGES} has no images: make images"
    node.load(*(one.resolve() for one in archives))  # what is there already is left out


@pytest.fixture(scope="session")
def stage(node: Node, images: None, report: Report, pytestconfig: pytest.Config) -> Stage:
    """What all tests look through."""
    made = pytestconfig.stash[STAGE] = Stage(node.cluster, report.folder)
    return made


@pytest.fixture(scope="session")
def recorder(stage: Stage, report: Report) -> Iterator[Recorder]:
    """Plans and conditions of the models, as they change."""
    with Recorder(stage, report) as recorder:
        yield recorder


@pytest.fixture(scope="session")
def installed(stage: Stage) -> Stage:
    """The chart of this checkout is installed."""
    stage.make_namespace(SYSTEM)
    stage.make_namespace(DEMO)
    if "apparate" not in stage.helm("list", "-n", SYSTEM, "-q", "--deployed"):
        stage.install()
    return stage


@pytest.fixture(scope="session")
def materials(installed: Stage) -> Stage:
    """Weights and frames are in the claim `datasets`."""
    installed.apply_file(TUTORIAL / "materials.yaml")
    installed.cluster.kubectl("wait", "job/materials", "-n", DEMO, "--for=condition=Complete", "--timeout=90s")
    return installed


@pytest.fixture(scope="session")
def example() -> dict[str, Any]:
    """The model of all tests, as the example has it."""
    found: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return found


@pytest.fixture(scope="session")
def applied(materials: Stage, recorder: Recorder, example: dict[str, Any]) -> Stage:
    """The example is applied, and beside it the same model without exits; an EarlyExitModel that is there stays."""
    plain = copy.deepcopy(example)
    plain["metadata"]["name"] = PLAIN
    plain["spec"]["adaptation"] = {"policy": "never"}
    plain["spec"]["bootstrap"]["epochs"] = 1  # its ramps are never used
    there = materials.cluster.kubectl("get", "eem", "-n", DEMO, "-o", "name")
    materials.kept_model = f"/{MODEL}\n" in there
    for one in (example, plain):
        if f"/{one['metadata']['name']}\n" not in there:
            materials.cluster.kubectl("apply", "-n", DEMO, "-f", "-", input=yaml.safe_dump(one))
    return materials


@pytest.fixture(scope="session")
def serving(applied: Stage) -> Stage:
    """The model serves with two workers."""
    applied.wait(f"{MODEL} is ready", lambda: applied.holds("Ready", "WorkersReady"), within=180)
    return applied


@pytest.fixture(scope="session")
def load(serving: Stage, report: Report) -> Iterator[Load]:
    """Traffic flows from here on, and answers leave early."""
    load = Load(serving)
    load.start()
    serving.wait(
        "answers leave early", lambda: sum(s["early"] for s in load.since(time.time() - 10).seconds), within=90
    )
    yield load
    report.keep_load(load)
