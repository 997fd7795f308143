"""What helm makes of the chart, tried against a real API server without installing it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from support.helm import CHART, Helm, HelmFailed, pod_specs
from support.kube import Cluster

pytestmark = pytest.mark.cluster

MONITORING = [
    f"--api-versions=monitoring.coreos.com/v1/{kind}" for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule")
]
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "some namespaces": {"namespaces": ["chart-a", "chart-b"]},
    "redis with a password and a volume": {
        "redis": {"auth": {"password": "given"}, "persistence": {"enabled": True, "storageClassName": "fast"}}
    },
    "redis by URL": {"redis": {"enabled": False, "external": {"url": "rediss://redis.example:6379/0"}}},
    "redis by Secret": {"redis": {"enabled": False, "external": {"existingSecret": "ours"}}},
    "two of each": {"operator": {"replicas": 2}, "controller": {"replicas": 2}},
    "openshift": {"openshift": True},
    "network policies": {
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]}
    },
    "everything else": {
        "fullnameOverride": "ee",
        "commonLabels": {"team": "ml"},
        "crds": {"install": False},
        "image": {"registry": "registry.example/ml", "tag": "7", "pullSecrets": [{"name": "pull"}]},
        "operator": {
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
            "serviceAccount": {"annotations": {"a": "b"}},
            "priorityClassName": "system-cluster-critical",
            "tolerations": [{"key": "system", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
            ],
        },
        "controller": {"nodeSelector": {"pool": "system"}, "service": {"port": 80, "annotations": {"a": "b"}}},
        "redis": {"image": {"digest": "sha256:" + "a" * 64}, "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"}},
    },
}


@pytest.fixture(params=["helm3", "helm"], ids=["helm-3", "helm-4"])
def helm(request: pytest.FixtureRequest, control_plane: Cluster) -> Helm:
    return Helm(control_plane.bin / request.param, control_plane.environ)


@pytest.fixture(scope="module")
def namespaces(control_plane: Cluster) -> Iterator[str]:
    """Those of VALUES, and one that enforces `restricted`, whose name is given."""
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    labels = {"chart": restricted, "chart-a": {}, "chart-b": {}}
    control_plane.apply(
        *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": n, "labels": f}} for n, f in labels.items())
    )
    yield "chart"
    control_plane.kubectl("delete", "namespace", "--wait=false", *labels)


def test_helm_lint_has_nothing_to_say(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_the_suites_of_the_chart_pass(control_plane: Cluster) -> None:
    unittest = Helm(control_plane.bin / "helm-unittest", control_plane.environ)
    assert "Charts:      1 passed" in unittest("--color=false", str(CHART))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_the_api_server_takes_every_rendering_to_the_letter(
    values: dict[str, Any], helm: Helm, control_plane: Cluster, namespaces: str
) -> None:
    documents = yaml.safe_dump_all(helm.template(values, namespace=namespaces))
    said = control_plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", input=documents)
    assert "Warning" not in said


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_every_pod_is_admitted_where_restricted_is_enforced(
    values: dict[str, Any], helm: Helm, control_plane: Cluster, namespaces: str
) -> None:
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"pod-{number}", "namespace": namespaces, "labels": template["metadata"]["labels"]},
            "spec": {**template["spec"], "serviceAccountName": "default"},  # the chart's own is not there
        }
        for number, template in enumerate(pod_specs(helm.template(values, namespace=namespaces)).values())
    ]
    control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump_all(pods))
    assert len(pods) == 3 + bool(values.get("redis", {}).get("enabled", True))


def test_there_is_no_webhook_and_no_hook_but_the_test(helm: Helm) -> None:
    documents = helm.template({"networkPolicy": {"enabled": True}}, *MONITORING)
    assert not [d for d in documents if "Webhook" in d["kind"]]  # what is down blocks nobody
    hooks = [d["metadata"].get("annotations", {}).get("helm.sh/hook") for d in documents]
    assert set(hooks) == {None, "test"}  # nothing of ours has a finalizer, so uninstalling needs none to clear


def test_monitors_and_rules_have_the_labels_that_prometheus_selects_by(helm: Helm) -> None:
    asked = {"monitoring": {"labels": {"release": "kps"}}}
    kinds = {"ServiceMonitor", "PodMonitor", "PrometheusRule"}
    made = [d for d in helm.template(asked, *MONITORING) if d["kind"] in kinds]
    assert {d["kind"] for d in made} == kinds
    assert {d["metadata"]["labels"]["release"] for d in made} == {"kps"}
    assert not [d for d in helm.template(asked) if d["kind"] in kinds]  # a cluster without that API


def test_the_crd_of_the_chart_is_the_generated_one(helm: Helm) -> None:
    rendered = next(d for d in helm.template() if d["kind"] == "CustomResourceDefinition")
    generated = yaml.safe_load((CHART / "files/crd/earlyexitmodels.apparate.dev.yaml").read_text())
    assert rendered["spec"] == generated["spec"]  # not rounded by a round trip through helm's own YAML


def test_dashboards_come_as_config_maps_to_the_last_character(helm: Helm) -> None:
    made = [d for d in helm.template() if d["kind"] == "ConfigMap"]
    found = {name: text for one in made for name, text in one["data"].items()}
    files = {f"apparate-{path.name}": path.read_text() for path in (CHART / "files/dashboards").glob("*.json")}
    assert found == files
    assert {one["metadata"]["labels"]["grafana_dashboard"] for one in made} == {"1"}


def test_a_value_that_does_not_exist_is_named(helm: Helm) -> None:
    with pytest.raises(HelmFailed, match="replica"):
        helm.template({"operator": {"replica": 2}})
