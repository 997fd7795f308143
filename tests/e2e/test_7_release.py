"""The release itself: from the chart one version back to this one under traffic, back again, and away."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.e2e import DEMO, MODEL, SYSTEM, Stage
from support.e2e_report import Report
from support.e2e_traffic import Load
from support.helm import an_older_chart

pytestmark = pytest.mark.e2e
CRD = "earlyexitmodels.apparate.dev"


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """The chart one version back; its CRD lacks a field that the model does not use."""
    return an_older_chart(tmp_path, lacks=("serving", "stallSeconds"))


def test_an_upgrade_and_a_rollback_of_the_release_are_not_noticed_by_clients(
    load: Load, stage: Stage, older: Path, report: Report
) -> None:
    workers = {pod.metadata.uid for pod in stage.workers()}
    tag = ("--set", f"image.tag={current_tag(stage)}")  # the chart is one version back, the images are the same
    with report.doing("release: one version back, upgraded, rolled back") as mark:
        stage.install(*tag, chart=older)
        stage.install()
        mark.over("upgraded from the version before")
        stage.helm("rollback", "apparate", "-n", SYSTEM, "--wait", "--timeout", "80s")
        stage.wait("the operator of before is there", lambda: stage.ready("operator"), within=60)
        mark.over("rolled back")
        stage.install()
        stage.wait("the model is served", lambda: stage.holds("Ready", "WorkersReady"), within=60)
    assert {pod.metadata.uid for pod in stage.workers()} == workers, "workers were restarted by a release"
    load.check(mark.begin)


def current_tag(stage: Stage) -> str:
    """Tag of the operator's image in the cluster."""
    image: str = stage.deployment("apparate-operator", SYSTEM).spec.template.spec.containers[0].image
    return image.rpartition(":")[2]


def test_uninstalling_keeps_models_and_what_serves_them(load: Load, stage: Stage, report: Report) -> None:
    uid, workers = stage.model()["metadata"]["uid"], {pod.metadata.uid for pod in stage.workers()}
    with report.doing("uninstalled") as mark:
        stage.helm("uninstall", "apparate", "-n", SYSTEM, "--wait", "--timeout", "80s")
        stage.wait("its pods are gone", lambda: not stage.core.list_namespaced_pod(SYSTEM).items, within=90)
        mark.over("nothing of it is left in its namespace")
        kinds = stage.cluster.kubectl("get", "deployments,services,secrets,leases,pvc", "-n", SYSTEM, "-o", "name")
        assert [one for one in kinds.split() if "sh.helm" not in one and "lease" not in one] == []
        assert stage.model()["metadata"]["uid"] == uid and {p.metadata.uid for p in stage.workers()} == workers
    load.check(mark.begin)


def test_models_can_be_deleted_without_an_operator_and_take_what_is_theirs_along(load: Load, stage: Stage) -> None:
    load.stop()
    stage.cluster.kubectl("delete", "eem", "--all", "-n", DEMO, "--timeout=30s")
    of_models = (
        "pods,deployments,services,secrets,configmaps,jobs,serviceaccounts,roles,rolebindings,pvc,pdb",
        "-n",
        DEMO,
    )
    left = lambda: stage.cluster.kubectl("get", *of_models, "-l", "apparate.dev/model", "-o", "name").split()  # noqa: E731
    stage.wait(f"nothing of {MODEL} is left", lambda: not left(), within=90)


def test_namespaces_and_the_crd_can_be_deleted(stage: Stage) -> None:
    stage.cluster.kubectl("delete", "namespace", DEMO, SYSTEM, "--timeout=90s")
    stage.cluster.delete_crds(CRD)
    assert CRD not in stage.cluster.kubectl("get", "crd", "-o", "name")
