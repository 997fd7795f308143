"""Pages about Kubernetes, word by word, as far as they go without nodes. A hand does operator's and controller's part.

tutorials/kubernetes.md, tutorials/one-node.md and charts/apparate/README.md; and what is said of kubectl in the
sentences of all pages, runbooks above all.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from apparate.contract.resource import PlanStatus
from apparate.plan import Plan
from support import kube
from support.commands import is_command
from support.control import CATALOG
from support.eventually import eventually
from support.objects import Objects
from support.pages import PAGES, lines_to_run, spans, to_run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
KUBERNETES, ONE_NODE, CHART = "docs/tutorials/kubernetes.md", "docs/tutorials/one-node.md", "charts/apparate/README.md"
GIVEN = {"MODEL": "resnet", "NAME": "resnet", "NAMESPACE": "demo", "REVISION": "1", "N": "2"}
"""What a reader of a sentence puts in."""
NOT_HERE = (
    "kubectl apparate history",  # these three ask a controller, through a Service with pods: tests/e2e/test_3_adapt.py
    "kubectl apparate what-if",
    "kubectl apparate record",
    "kubectl apparate doctor",  # finds much here, as it should: tests/cluster/test_command_line.py
    "kubectl -n apparate port-forward",  # there is no node
    "kubectl logs --namespace apparate deployment",
    "kubectl --namespace apparate logs",
    "kubectl apply",  # mentioned without a file
)


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[kube.Cluster]:
    """A cluster that these pages have for themselves, with the plugin of kubectl."""
    with kube.a_control_plane() as plane:
        plugin = plane.bin / "kubectl-apparate"
        plugin.write_text(f"#!{sys.executable}\nfrom apparate.cli.main import plugin\nplugin()\n")
        plugin.chmod(0o755)
        yield plane


def execute(plane: kube.Cluster, line: str) -> None:
    """One line, from the root of the project, without waiting for what only pods bring about."""
    once = line.removesuffix(" --watch").removesuffix(" --wait")

    def attempt() -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", once],
            cwd=kube.ROOT,
            env=plane.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        told = f"{once}\n{done.stdout}{done.stderr}"
        if "no matches for kind" in told:
            raise AssertionError(told)  # a CRD serves a moment after helm has made it
        return "" if done.returncode == 0 else told

    wrong = eventually(lambda: [attempt()], within=15)[0]
    assert not wrong, wrong


def adapted(plane: kube.Cluster) -> None:
    """What operator and controller write of a model once it adapts, and what the operator makes to scale it."""
    objects = Objects(plane, "demo")
    objects.prepare("resnet")
    plans = [
        PlanStatus.of(Plan.of(revision, [1], [0.5], CATALOG.digest), CATALOG.layers, reason="ThresholdsTuned")
        for revision in (3, 1)
    ]
    now, before = (one.model_dump(mode="json", by_alias=True) for one in plans)
    objects.apply({"plan": now, "history": [before]}, "resnet", "apparate-controller")
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "resnet-worker"}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 2}
    autoscaler = {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": spec}
    plane.apply({**autoscaler, "metadata": {"name": "resnet-worker"}}, namespace="demo")


def said_of_kubectl() -> list[str]:
    """Commands of kubectl in the sentences of all pages, each once, as a reader would type them; no mere mentions."""
    found = {text for page in PAGES for text in spans(page) if text.startswith("kubectl ") and is_command(text)}
    whole = (text for text in sorted(found) if len(text.split()) > 2 and not text.startswith(NOT_HERE))
    return [re.sub(r"\b[A-Z]+\b", lambda word: GIVEN.get(word[0], word[0]), text) for text in whole]


@contextlib.contextmanager
def working_in(plane: kube.Cluster, namespace: str) -> Iterator[None]:
    """The namespace that commands take which name none."""
    execute(plane, f"kubectl config set-context --current --namespace={namespace}")
    yield
    execute(plane, "kubectl config set-context --current --namespace=default")


def test_the_one_node_tutorial_works_in_its_order(plane: kube.Cluster) -> None:
    lines = lines_to_run(ONE_NODE)
    assert len(lines) > 12
    for line in lines:
        execute(plane, line)


def test_the_charts_readme_works_in_its_order(plane: kube.Cluster) -> None:
    for line in lines_to_run(CHART):
        execute(plane, line)
    execute(plane, "helm uninstall apparate --namespace apparate")  # its namespace stays: the next one takes it as well
    execute(plane, "kubectl delete crd earlyexitmodels.apparate.dev")


def test_the_tutorial_works_in_its_order_and_so_does_what_sentences_say(plane: kube.Cluster) -> None:
    lines = lines_to_run(KUBERNETES)
    adapts = next(i for i, line in enumerate(lines) if line.startswith("kubectl apparate"))
    ends = next(i for i, line in enumerate(lines) if line.startswith("kubectl delete eem"))
    for line in lines[:adapts]:
        execute(plane, line)
    adapted(plane)
    for line in lines[adapts:ends]:
        execute(plane, line)
    said = said_of_kubectl()
    assert len(said) > 15
    with working_in(plane, "demo"):
        for line in said:
            execute(plane, line)
    for line in lines[ends:]:  # the last page: nobody waits for its namespaces to be gone
        execute(plane, f"{line} --wait=false" if line.startswith("kubectl delete namespace") else line)


def test_pictures_become_the_tutorials_array(tmp_path: Path) -> None:
    from PIL import Image

    (tmp_path / "images").mkdir()
    for number in range(3):
        Image.new("RGB", (40, 30), (number * 80, 0, 0)).save(tmp_path / "images" / f"{number}.jpg")
    (block,) = to_run(KUBERNETES, "python")
    with contextlib.chdir(tmp_path):
        exec(compile(block.run, block.place, "exec"), {})
    assert np.load(tmp_path / "inputs.npz")["pixel_values"].shape == (3, 3, 224, 224)
