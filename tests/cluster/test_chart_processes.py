"""Operator and controller as the chart starts them: its environment, its ServiceAccounts and nothing more."""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from apparate.contract.resource import EarlyExitModel
from apparate.service.redis_server import free_port
from support.eventually import eventually
from support.helm import Helm, a_home, environment, established, one
from support.kube import ROOT, Cluster
from support.models_on_kubernetes import a_catalog, catalog_body
from support.processes import Process, a_process

pytestmark = pytest.mark.cluster
LISTENING = {"operator": "EEM_OPERATOR_HEALTH_PORT", "controller": "EEM_CONTROLLER_PORT"}


@pytest.fixture(params=["cluster-wide", "one namespace"])
def home(request: pytest.FixtureRequest, bare_control_plane: Cluster) -> Iterator[tuple[Cluster, str]]:
    """A namespace in which the chart is installed, for all namespaces or for itself only."""
    with a_home(bare_control_plane) as name:
        only = {"namespaces": [name]} if request.param == "one namespace" else {}
        Helm(bare_control_plane.bin / "helm", bare_control_plane.environ).install(only, namespace=name)
        established(bare_control_plane)
        yield bare_control_plane, name


def as_in_a_pod(cluster: Cluster, namespace: str, component: str, **instead: str) -> dict[str, str]:
    """The environment that a kubelet would give to a component's container, some of it replaced."""
    template = cluster.get("deployment", f"apparate-{component}", "-n", namespace)["spec"]["template"]
    found: dict[str, str] = {}
    for name, value in environment(template).items():
        text = value if isinstance(value, str) else looked_up(cluster, namespace, value or {})
        found[name] = re.sub(r"\$\((\w+)\)", lambda match: found.get(match[1], match[0]), text)
    return {**found, **instead}


def looked_up(cluster: Cluster, namespace: str, source: Mapping[str, Any]) -> str:
    """What a kubelet would find for `valueFrom`; an empty value is shown without any."""
    if "fieldRef" in source:
        pod = {"metadata.namespace": namespace, "metadata.name": "pod-0", "status.podIP": "127.0.0.1"}
        return pod[source["fieldRef"]["fieldPath"]]
    if "secretKeyRef" in source:
        key = source["secretKeyRef"]
        return base64.b64decode(cluster.get("secret", key["name"], "-n", namespace)["data"][key["key"]]).decode()
    return ""


def started(cluster: Cluster, namespace: str, component: str, **instead: str) -> tuple[Any, int]:
    """A context with the component's process, and the port it answers on."""
    port = free_port()
    instead[LISTENING[component]] = str(port)
    account = str(cluster.kubeconfig_of(namespace, f"apparate-{component}"))
    instead[f"EEM_{component.upper()}_KUBECONFIG"] = account
    environ = as_in_a_pod(cluster, namespace, component, **instead)
    return a_process([sys.executable, "-m", f"apparate_{component}"], environ), port


def status(port: int, path: str, process: Process) -> int:
    """HTTP status of a path; 0 while nobody listens."""
    assert process.popen.poll() is None, f"ended: {process.err[-10:]}"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return int(error.code)
    except OSError:
        return 0


def test_the_operator_is_healthy_with_what_the_chart_gives_it(home: tuple[Cluster, str]) -> None:
    cluster, namespace = home
    context, port = started(cluster, namespace, "operator")
    with context as process:
        eventually(lambda: status(port, "/healthz", process) == 200, within=30)
        holder = lambda: cluster.get("lease", "apparate-operator", "-n", namespace)["spec"].get("holderIdentity")  # noqa: E731
        assert eventually(holder, within=20) == "pod-0"


def test_the_operator_makes_what_a_model_needs_with_the_rights_of_the_chart(home: tuple[Cluster, str]) -> None:
    cluster, namespace = home
    cluster.kubectl("apply", "-n", namespace, "-f", str(ROOT / "examples" / "text.yaml"))
    context, _ = started(cluster, namespace, "operator")
    with context as process:
        kinds = {"Job", "Role", "RoleBinding", "ServiceAccount"}
        names = "jobs,roles,rolebindings,serviceaccounts"
        by_us = ["-n", namespace, "-l", "app.kubernetes.io/managed-by=apparate-operator"]
        eventually(lambda: {one["kind"] for one in cluster.get(names, *by_us)["items"]} >= kinds, within=40)
        model = EarlyExitModel.model_validate(cluster.get("eem", "sentiment", "-n", namespace))
        cluster.apply(catalog_body(model, catalog=a_catalog()))
        eventually(lambda: cluster.get("deployments,secrets", *by_us)["items"][1:], within=20)
        secret = cluster.get("secret", "sentiment-redis", "-n", namespace)
        url = base64.b64decode(secret["data"]["url"]).decode()
        assert re.fullmatch(rf"redis://:\w{{32}}@apparate-redis\.{namespace}\.svc:6379/0", url)
        assert url not in cluster.kubectl("get", "deployments,jobs,pods", "-n", namespace, "-o", "json")
        told = cluster.get("eem", "sentiment", "-n", namespace).get("status", {}).get("conditions", [])
        assert "Prepared" in {one["type"] for one in told}
    refused = [line for line in process.err if "orbidden" in line]
    assert not [line for line in refused if "customresourcedefinitions" not in line]  # a Role cannot grant that one


def test_the_controller_is_healthy_with_what_the_chart_gives_it(home: tuple[Cluster, str], redis_server: str) -> None:
    cluster, namespace = home
    context, port = started(cluster, namespace, "controller", EEM_CONTROLLER_REDIS_URL=redis_server)
    with context as process:
        eventually(lambda: status(port, "/readyz", process) == 200, within=30)
        holder = lambda: cluster.get("lease", "apparate-controller", "-n", namespace)["spec"].get("holderIdentity")  # noqa: E731
        assert eventually(holder, within=20)
        eventually(lambda: status(port, "/v1/models", process) == 200, within=10)
        asking = Helm(cluster.bin / "helm", cluster.environ).template({}, namespace=namespace)
        pod = one(asking, "Pod", "apparate-test")["spec"]["containers"][0]  # what `helm test` runs
        script = [sys.executable, *pod["command"][1:], pod["args"][0], f"http://127.0.0.1:{port}"]
        said = subprocess.run(script, capture_output=True, text=True, timeout=30, check=True).stdout
        assert "/healthz 200" in said and "/readyz 200" in said
