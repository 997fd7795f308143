"""`apparate` and `kubectl apparate` on EarlyExitModels in a real API server."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from apparate.cli.main import PLUGIN, run
from apparate.cli.target import asker
from apparate.contract.resource import PlanStatus
from apparate.plan import Plan
from support.control import CATALOG
from support.objects import Objects

pytestmark = pytest.mark.cluster


def a_plan(revision: int, threshold: float = 0.5, catalog: str = CATALOG.digest) -> PlanStatus:
    plan = Plan.of(revision, [1], [threshold], catalog)
    return PlanStatus.of(plan, CATALOG.layers, reason="ThresholdsTuned", message="1 ramp opens")


def plain(plan: PlanStatus):
    return plan.model_dump(mode="json", by_alias=True)


@pytest.fixture
def objects(control_plane, namespace, crd):
    found = Objects(control_plane, namespace)
    found.create()
    found.prepare()
    found.apply(
        {
            "plan": plain(a_plan(7, 0.25)),
            "history": [plain(a_plan(6, 0.75)), plain(a_plan(3, 0.5, "another"))],
            "delivery": {"revision": 7, "workers": 2, "updatedWorkers": 1},
            "observed": {
                "accuracyLoss": {"value": 0.004, "upper": 0.009, "samples": 900},
                "latencySavedRatio": 0.31,
                "exitRate": 0.5,
                "ramps": [{"ramp": 1, "exitRate": 0.5, "agreement": 0.996, "savedMs": 1.234}],
            },
            "conditions": [
                {
                    "type": "PlanDelivered",
                    "status": "False",
                    "reason": "Delivering",
                    "message": "1 of 2 workers run plan revision 7",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        },
        "m",
        "apparate-controller",
    )
    return found


@pytest.fixture
def cluster(objects):
    """Options that name the cluster and the namespace."""
    return ["--kubeconfig", str(objects.cluster.kubeconfig), "-n", objects.namespace]


def test_status_shows_plan_delivery_and_what_is_not_as_wished(objects, cluster, capsys):
    assert run(["status", *cluster]) == 0
    shown = capsys.readouterr().out
    wanted = (
        "/m",
        "1/2",
        "50.0 %",
        "0.4 %",
        "31.0 %",
        "ThresholdsTuned: 1 ramp opens",
        "not PlanDelivered: Delivering",
    )
    assert [text for text in wanted if text not in shown] == []


def test_status_of_all_namespaces(objects, capsys):
    assert run(["status", "--kubeconfig", str(objects.cluster.kubeconfig), "-A", "-o", "json"]) == 0
    assert f"{objects.namespace}/m" in [f"{m['namespace']}/{m['name']}" for m in json.loads(capsys.readouterr().out)]


@pytest.mark.parametrize("whole", [False, True])
def test_exits_shows_each_ramp(whole, objects, cluster, capsys):
    assert run(["exits", f"{objects.namespace}/m" if whole else "m", *cluster]) == 0
    shown = capsys.readouterr().out
    assert [t for t in ("revision 7", "0.2500", "50.0 %", "99.6 %", "1.23 ms") if t not in shown] == []


def test_plan_shows_the_one_in_force_and_those_before_it(objects, cluster, capsys):
    assert run(["plan", "m", *cluster, "-o", "json"]) == 0
    assert [plan["revision"] for plan in json.loads(capsys.readouterr().out)] == [7, 6, 3]


def test_pause_and_resume_change_the_spec(objects, cluster, capsys):
    assert run(["pause", "m", *cluster]) == 0
    assert objects.get()["spec"]["adaptation"]["paused"] is True
    assert run(["status", *cluster, "-o", "json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out.partition("7\n")[2])
    assert (shown["paused"], shown["pausedBy"], shown["budget"]["accuracyLoss"]) == (True, "apparate-cli", 0.01)
    assert shown["pausedSince"][:2] == "20"
    assert run(["resume", "m", *cluster]) == 0
    assert objects.get()["spec"]["adaptation"]["paused"] is False
    assert "adapts again from plan revision 7" in capsys.readouterr().out


def test_rollback_puts_an_earlier_plan_in_force_under_a_new_revision(objects, cluster, capsys):
    assert run(["rollback", "m", "6", *cluster]) == 0
    assert "revision 6 is in force again, as 8" in capsys.readouterr().out
    plan = objects.plan()
    assert (plan["revision"], plan["ramps"][0]["threshold"], plan["reason"]) == (8, 0.75, "RolledBackByHand")
    assert plan["message"] == f"revision 6 again, as {asker()} asked"
    assert [one["revision"] for one in objects.status()["history"]] == [7, 6, 3]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["rollback", "m", "5"], "revision 5 is not in the history; there are: 6, 3"),
        (["rollback", "m", "7"], "plan revision 7 is in force already"),
        (["rollback", "m", "3"], "revision 3 is for catalog another"),
        (["exits", "nobody"], "there is no model nobody; models are: "),
    ],
)
def test_what_cannot_be_done_is_told_and_changes_nothing(argv, words, objects, cluster, capsys):
    assert run([*argv, *cluster]) == 2
    assert words in capsys.readouterr().err
    assert objects.plan()["revision"] == 7


def test_a_context_that_is_not_there_is_named(objects, capsys):
    assert run(["status", "--kubeconfig", str(objects.cluster.kubeconfig), "--context", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_an_address_and_a_cluster_exclude_each_other(cluster, capsys):
    assert run(["status", *cluster, "--url", "http://127.0.0.1:1"]) == 2
    assert "--url is for local mode" in capsys.readouterr().err


def test_the_plugin_has_only_what_works_on_a_cluster(capsys):
    assert run(["--help"], PLUGIN) == 0
    shown = capsys.readouterr().out
    assert "rollback" in shown and "prepare" not in shown and "kubectl apparate" in shown


def test_kubectl_finds_it(objects, tmp_path: Path):
    plugin = tmp_path / "kubectl-apparate"
    plugin.write_text(f"#!{sys.executable}\nfrom apparate.cli.main import plugin\nplugin()\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    kubectl = objects.cluster.bin / "kubectl"
    command = [str(kubectl), "apparate", "status", "-n", objects.namespace, "-o", "json"]
    environ = {**objects.cluster.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)[0]["plan"]["revision"] == 7


def test_the_doctor_tells_what_an_installation_lacks(objects, cluster, capsys):
    assert run(["doctor", *cluster, "-o", "json"]) == 1
    found = {one["check"]: one for one in json.loads(capsys.readouterr().out)}
    assert [found[name]["verdict"] for name in ("API server", "CRD", "your rights")] == ["ok"] * 3
    assert (found["pods of operator"]["verdict"], found["pods of operator"]["told"]) == ("fail", "there are none")
    assert "no controller" in found["controller"]["told"]
    assert "PlanDelivered: Delivering" in found[f"model {objects.namespace}/m"]["told"]


def test_the_doctor_tells_that_an_api_server_does_not_answer(objects, tmp_path, capsys):
    path = tmp_path / "kubeconfig"
    path.write_text(objects.cluster.kubeconfig.read_text().replace(objects.cluster.url, "https://127.0.0.1:1"))
    assert run(["doctor", "--kubeconfig", str(path), "-o", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["check"], found["verdict"]) == ("API server", "fail")


def a_document(folder: Path, **spec: object) -> Path:
    """What `objects` has applied, with more in its spec."""
    model = {
        "source": "pvc://models/m.safetensors",
        "entrypoint": "a.b:c",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [16]}],
    }
    content = {"metadata": {"name": "m"}, "spec": {"model": model, "bootstrap": {"data": "pvc://models/data.npz"}}}
    found = folder / "model.yaml"
    found.write_text(json.dumps(content | {"spec": content["spec"] | spec}))  # JSON is YAML
    return found


def checked(capsys, *argv: str) -> dict[str, str]:
    """What `check` says of the object, by field."""
    assert run(["check", *argv, "-o", "json"]) == 0
    return {one["field"]: one["told"] for one in json.loads(capsys.readouterr().out) if one["check"] == "cluster"}


def test_check_tells_what_each_edit_of_an_applied_document_causes(objects, cluster, tmp_path, capsys):
    same = checked(capsys, "-f", str(a_document(tmp_path)), *cluster)
    assert same == {"": f"the spec of {objects.namespace}/m is as this document has it"}
    edited = a_document(
        tmp_path, budget={"accuracyLoss": 0.02}, serving={"maxBatch": 16, "maxQueue": 100, "replicas": 2}
    )
    found = checked(capsys, "-f", str(edited), *cluster)
    assert {field: told.partition(": ")[2][:14] for field, told in found.items()} == {
        "spec.budget.accuracyLoss": "in force witho",
        "spec.serving.maxBatch": "prepared anew,",
        "spec.serving.maxQueue": "workers are re",
        "spec.serving.replicas": "in force witho",
    }


def test_check_says_that_a_document_is_not_applied_yet(objects, cluster, tmp_path, capsys):
    text = a_document(tmp_path).read_text().replace('"name": "m"', '"name": "other"')
    (tmp_path / "other.yaml").write_text(text)
    (told,) = checked(capsys, "-f", str(tmp_path / "other.yaml"), *cluster).values()
    assert told == f"{objects.namespace}/other is not there yet: it would be prepared, then served"
