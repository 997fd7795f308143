"""helm install, upgrade, rollback and uninstall of the chart, against a real API server.

Nothing is waited for by helm: there is no kubelet. Pods exist when a ReplicaSet's were admitted.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.eventually import eventually
from support.helm import CRD, Helm, HelmFailed, a_home, a_stand_in, an_older_chart, established
from support.kube import Cluster

pytestmark = pytest.mark.cluster
CRD_FILE = f"files/crd/{CRD}.yaml"
MODEL = {
    "apiVersion": "apparate.dev/v1alpha1",
    "kind": "EarlyExitModel",
    "metadata": {"name": "ours"},
    "spec": {
        "model": {
            "source": "pvc://models/weights.safetensors",
            "entrypoint": "mymodel:load",
            "inputs": [{"name": "image", "datatype": "FP32", "shape": [3, 8, 8]}],
        },
        "bootstrap": {"data": "pvc://models/inputs.npz"},
    },
}


@pytest.fixture
def cluster(bare_control_plane: Cluster) -> Cluster:
    return bare_control_plane


@pytest.fixture(params=["helm3", "helm"], ids=["helm-3", "helm-4"])
def helm(request: pytest.FixtureRequest, cluster: Cluster) -> Helm:
    return Helm(cluster.bin / request.param, cluster.environ)


@pytest.fixture
def home(cluster: Cluster) -> Iterator[str]:
    """A fresh namespace that enforces `restricted`."""
    with a_home(cluster, {"pod-security.kubernetes.io/enforce": "restricted"}) as name:
        yield name


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The chart one version back; its CRD lacks `rampOverhead`."""
    return an_older_chart(tmp_path)


def spec_fields(crd: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return fields


def apply_model(cluster: Cluster, namespace: str) -> str:
    """Make an EarlyExitModel as soon as the CRD serves; its uid."""
    established(cluster)
    cluster.apply(MODEL, namespace=namespace)
    return str(cluster.get("eem", "ours", "-n", namespace)["metadata"]["uid"])


def pods(cluster: Cluster, namespace: str) -> set[str]:
    """Components that have a pod."""
    items = cluster.get("pods", "-n", namespace)["items"]
    return {one["metadata"]["labels"]["app.kubernetes.io/component"] for one in items}


def uids(cluster: Cluster, namespace: str) -> dict[str, str]:
    """What must survive an upgrade, by kind and name."""
    items = cluster.get("deployments,services,serviceaccounts,secrets", "-n", namespace)["items"]
    ours = [i for i in items if i["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") == "apparate"]
    return {f"{i['kind']}/{i['metadata']['name']}": i["metadata"]["uid"] for i in ours}


def test_every_pod_of_an_install_is_admitted_where_restricted_is_enforced(
    helm: Helm, cluster: Cluster, home: str
) -> None:
    said = helm.install({}, namespace=home)
    assert "kubectl apply -f examples/vision.yaml" in said
    eventually(lambda: pods(cluster, home) == {"operator", "controller", "redis"}, within=30)


def test_an_upgrade_without_changes_changes_nothing(helm: Helm, cluster: Cluster, home: str) -> None:
    helm.install({}, namespace=home)
    before = settled(cluster, home)
    helm.install({}, namespace=home)
    assert settled(cluster, home) == before


def settled(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """What an upgrade without changes must leave as it is: generations of Deployments, the password."""
    deployments = cluster.get("deployments", "-n", namespace)["items"]
    found = {one["metadata"]["name"]: one["metadata"]["generation"] for one in deployments}
    secret = cluster.get("secret", "apparate-redis", "-n", namespace)
    return {**found, "password": base64.b64decode(secret["data"]["password"]).decode()}


def test_an_upgrade_from_the_version_before_keeps_objects_and_brings_new_fields(
    helm: Helm, cluster: Cluster, home: str, older: Path
) -> None:
    helm.install({}, namespace=home, chart=older)
    assert "rampOverhead" not in spec_fields(cluster.get("crd", CRD))["budget"]["properties"]
    model, before = apply_model(cluster, home), uids(cluster, home)
    helm.install({}, namespace=home)
    assert "rampOverhead" in spec_fields(cluster.get("crd", CRD))["budget"]["properties"]
    assert uids(cluster, home) == before
    assert cluster.get("eem", "ours", "-n", home)["metadata"]["uid"] == model
    budget = '{"spec": {"budget": {"rampOverhead": 0.125}}}'
    eventually(lambda: "patched" in cluster.kubectl("patch", "eem", "ours", "-n", home, "--type=merge", "-p", budget))
    kept = lambda: cluster.get("eem", "ours", "-n", home)["spec"]["budget"].get("rampOverhead") == 0.125  # noqa: E731
    assert eventually(kept)


def test_a_rollback_goes_back_and_keeps_objects(helm: Helm, cluster: Cluster, home: str, older: Path) -> None:
    helm.install({}, namespace=home, chart=older)
    model, before = apply_model(cluster, home), uids(cluster, home)
    helm.install({}, namespace=home)
    helm("rollback", "apparate", "1", "-n", home)
    pod = cluster.get("deployment", "apparate-operator", "-n", home)["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"].endswith(":0.0.9")
    assert uids(cluster, home) == before
    assert cluster.get("eem", "ours", "-n", home)["metadata"]["uid"] == model


def test_uninstalling_keeps_models_which_can_then_be_deleted_without_an_operator(
    helm: Helm, cluster: Cluster, home: str
) -> None:
    helm.install({}, namespace=home)
    model = apply_model(cluster, home)
    helm("uninstall", "apparate", "-n", home)
    assert cluster.get("eem", "ours", "-n", home)["metadata"]["uid"] == model
    assert uids(cluster, home) == {}
    cluster.kubectl("delete", "eem", "--all", "-n", home, "--timeout=20s")


def test_installing_again_takes_up_what_was_kept(helm: Helm, cluster: Cluster, home: str) -> None:
    helm.install({}, namespace=home)
    model = apply_model(cluster, home)
    helm("uninstall", "apparate", "-n", home)
    helm.install({}, namespace=home)
    assert cluster.get("eem", "ours", "-n", home)["metadata"]["uid"] == model


def test_uninstalling_takes_the_crd_along_when_that_is_asked(helm: Helm, cluster: Cluster, home: str) -> None:
    helm.install({"crds": {"keep": False}}, namespace=home)
    helm("uninstall", "apparate", "-n", home)
    gone = lambda: CRD not in cluster.kubectl("get", "crd", "-o", "name")  # noqa: E731
    assert eventually(gone, within=30)


@pytest.mark.parametrize("applied", [["create"], ["apply", "--server-side"]], ids=" ".join)
def test_an_older_crd_that_kubectl_made_is_refused_and_then_taken_over(
    applied: list[str], helm: Helm, cluster: Cluster, home: str, older: Path
) -> None:
    cluster.kubectl(*applied, "-f", str(older / CRD_FILE))
    model = apply_model(cluster, home)
    with pytest.raises(HelmFailed, match="cannot be imported"):
        helm.install({}, namespace=home)
    if helm.major > 3:  # it applies server-side, and somebody else's values differ
        with pytest.raises(HelmFailed, match="conflict"):
            helm.install({}, "--take-ownership", namespace=home)
    helm.install({}, "--take-ownership", *(["--force-conflicts"] if helm.major > 3 else []), namespace=home)
    helm.install({}, namespace=home)  # from now on as any other
    crd = cluster.get("crd", CRD)
    assert crd["metadata"]["annotations"]["meta.helm.sh/release-name"] == "apparate"
    assert "rampOverhead" in spec_fields(crd)["budget"]["properties"]
    assert cluster.get("eem", "ours", "-n", home)["metadata"]["uid"] == model


def test_helm_4_upgrades_what_helm_3_installed(cluster: Cluster, home: str, older: Path) -> None:
    Helm(cluster.bin / "helm3", cluster.environ).install({}, namespace=home, chart=older)
    model, before = apply_model(cluster, home), uids(cluster, home)
    Helm(cluster.bin / "helm", cluster.environ).install({}, namespace=home)
    assert "rampOverhead" in spec_fields(cluster.get("crd", CRD))["budget"]["properties"]
    assert uids(cluster, home) == before
    assert cluster.get("eem", "ours", "-n", home)["metadata"]["uid"] == model


def test_a_list_of_namespaces_gives_no_right_anywhere_else(helm: Helm, cluster: Cluster, home: str) -> None:
    helm.install({"namespaces": [home]}, namespace=home)
    established(cluster)
    operator = f"--as=system:serviceaccount:{home}:apparate-operator"
    may = ["auth", "can-i", operator, "create", "deployments"]
    assert cluster.kubectl(*may, "-n", home).strip() == "yes"
    assert forbidden(cluster, *may, "-n", "default")
    names = cluster.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name")
    assert f"{home}-apparate" not in names


def forbidden(cluster: Cluster, *question: str) -> bool:
    try:
        cluster.kubectl(*question)
    except RuntimeError:  # can-i ends with 1 for no
        return True
    return False


def test_pods_fit_a_quota_on_requests_and_memory(helm: Helm, cluster: Cluster, home: str) -> None:
    hard = {"requests.cpu": "1", "requests.memory": "1Gi", "limits.memory": "2Gi"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "ours"}, "spec": {"hard": hard}}
    cluster.apply(quota, namespace=home)
    eventually(lambda: cluster.get("resourcequota", "ours", "-n", home).get("status", {}).get("used"), within=30)
    helm.install({}, namespace=home)
    eventually(lambda: pods(cluster, home) == {"operator", "controller", "redis"}, within=30)


def test_monitors_are_made_where_the_cluster_knows_them(helm: Helm, cluster: Cluster, home: str) -> None:
    stand_ins = [a_stand_in(kind) for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule")]
    cluster.apply(*stand_ins)
    try:
        for one in stand_ins:
            established(cluster, one["metadata"]["name"])
        helm.install({"monitoring": {"labels": {"release": "kps"}}}, namespace=home)
        listed = cluster.kubectl(
            "get", "servicemonitors,podmonitors,prometheusrules", "-n", home, "-l", "release=kps", "-o", "name"
        )
        kinds = {one.partition(".")[0] for one in listed.split()}
        assert kinds == {"servicemonitor", "podmonitor", "prometheusrule"}
        helm("uninstall", "apparate", "-n", home)
    finally:
        cluster.delete_crds("-l", "stand-in=true")
