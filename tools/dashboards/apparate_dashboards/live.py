"""A real run to look at: demo models in local mode with their traffic, and an operator on a real Kubernetes API."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

from apparate.cli.logs import LogWriter
from apparate.cli.planning import Served
from apparate.cli.ports import FREE
from apparate.cli.stack import LocalStack
from apparate.contract.document import load_documents
from apparate_demo import load
from apparate_demo.assets import asset
from apparate_demo.client import Client, Target
from apparate_demo.command import prepare
from apparate_demo.run import CONCURRENCY, TRACE
from apparate_demo.scenarios import SCENARIOS
from apparate_demo.scenarios.scenario import Workspace, default_workdir, write

CAPACITY_S = 3.0
SLO_MS = 25
LOAD = 0.6  # of what the machine can, shared by the models
Tell = Callable[[str], None]


@contextlib.contextmanager
def a_run(names: list[str], seconds: float, folder: Path, tell: Tell) -> Iterator[tuple[dict[str, list[str]], Path]]:
    """Targets by job while demo models serve their traffic; it goes on until the block ends."""
    workspaces = {name: write(SCENARIOS[name], default_workdir(name), None) for name in names}
    for name, workspace in workspaces.items():
        tell(f"{name}: prepared once, kept for the next run")
        prepare(workspace, lambda _: None)
    served = [with_objective(one) for one in workspaces.values()]
    log = folder / "serving.log"
    with log.open("w") as out, LocalStack(served, ports=FREE, log=LogWriter(out)) as stack:
        addresses = {one.model.rpartition("/")[2]: one.http for one in stack.endpoints}
        threads = [
            threading.Thread(target=_send, args=(workspace, addresses, seconds, len(names), tell), daemon=True)
            for workspace in workspaces.values()
        ]
        for thread in threads:
            thread.start()
        host = stack.controller_url.removeprefix("http://")
        yield {"workers": list(addresses.values()), "controller": [host]}, log
        for thread in threads:
            thread.join()


def with_objective(workspace: Workspace) -> Served:
    """The scenario's document, with a latency objective to look at."""
    body = yaml.safe_load(workspace.document_path.read_text())
    body["spec"]["serving"]["slo"] = {"latencyMs": SLO_MS, "target": 0.95}
    path = workspace.folder / "dashboards.yaml"
    path.write_text(yaml.safe_dump(body))
    return Served(path, load_documents(path)[0])


def _send(workspace: Workspace, addresses: dict[str, str], seconds: float, models: int, tell: Tell) -> None:
    import numpy as np

    name = workspace.document.model.metadata.name
    target = Target(addresses[name], name, "http")
    with np.load(workspace.traffic_path) as traffic:
        inputs = len(traffic[traffic.files[0]])
    with Client(workspace.traffic_path) as client:
        capacity = client.saturate(target, seconds=CAPACITY_S, concurrency=CONCURRENCY)
        rate = capacity * LOAD / models
        tell(f"{name}: {rate:.0f} requests/s")
        arrivals = load.scaled_arrivals(load.read_gaps(asset(TRACE)), max(2, int(rate * seconds)), rate)
        for piece in load.cut(arrivals, seconds=min(5.0, seconds), inputs=inputs):
            client.run(target, piece)


@contextlib.contextmanager
def an_operator_at_work() -> Iterator[dict[str, list[str]]]:
    """Targets of an operator that looks after two models on a real API server; one of them cannot be prepared."""
    from apparate.contract.schema import crd
    from support import kube
    from support.models_on_kubernetes import a_body
    from support.operator import Hand, an_operator

    with kube.a_cluster() as cluster, cluster.namespace() as namespace:
        cluster.install_crd(crd())
        with an_operator(cluster, namespace) as operator:
            operator.settle()
            hand = Hand(cluster, namespace)
            hand.serve(a_body())
            hand.create(a_body("bert"))
            yield {"operator": [operator.url.removeprefix("http://")]}
