"""What people do to the operator's own objects, and what the cluster does not let it make."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client import ApiException

from support import kube
from support.eventually import eventually
from support.models_on_kubernetes import a_body
from support.operator import Hand, RunningOperator, an_operator_for_all

pytestmark = [pytest.mark.cluster]


@pytest.fixture(scope="module", autouse=True)
def operator(control_plane: kube.Cluster) -> Iterator[RunningOperator]:
    with an_operator_for_all(control_plane, "mending") as running:
        yield running


def replaced(path: str, value: Any) -> dict[str, Any]:
    return {"op": "replace", "path": path, "value": value}


OTHER_PORT = replaced("/spec/ports/0/port", 9999)
CONTAINER = "/spec/template/spec/containers/0"


@pytest.mark.parametrize(
    ("what", "edits"),
    [
        ("service/resnet", [OTHER_PORT]),
        ("service/resnet", [OTHER_PORT, replaced("/spec/ports/1/port", 9998)]),
        ("deployment/resnet-worker", [replaced(f"{CONTAINER}/ports/0/containerPort", 9999)]),
        ("deployment/resnet-worker", [replaced(f"{CONTAINER}/startupProbe", {"exec": {"command": ["true"]}})]),
        ("pdb/resnet-worker", [{"op": "remove", "path": "/spec/maxUnavailable"}, replaced("/spec/minAvailable", 1)]),
    ],
    ids=["a-port", "both-ports", "a-container-port", "a-probe", "a-budget"],
)
def test_an_object_whose_edited_content_cannot_be_applied_over_is_brought_back_without_deleting_it(
    hand: Hand, what: str, edits: list[dict[str, Any]]
):
    hand.serve(a_body())
    before = hand.read(what)
    edits = [edit | {"op": "add"} if edit["path"].endswith("minAvailable") else edit for edit in edits]
    hand.edit(what, *edits)
    eventually(lambda: hand.read(what)["spec"] == before["spec"], within=20)
    assert hand.read(what)["metadata"]["uid"] == before["metadata"]["uid"]
    message = eventually(lambda: dict(hand.events()).get("Mended"), within=10)
    assert before["metadata"]["name"] in message
    hand.start_workers()
    hand.is_reason("Ready", "Ready")


def test_an_object_that_is_edited_again_and_again_is_mended_once_and_then_told(hand: Hand):
    hand.serve(a_body())
    hand.edit("service/resnet", OTHER_PORT)
    eventually(lambda: "Mended" in dict(hand.events()), within=20)
    hand.edit("service/resnet", OTHER_PORT)
    assert "find out who changes it" in hand.is_reason("Ready", "SpecRejected")
    hand.cluster.kubectl("wait", "-n", hand.namespace, "eem/resnet", "--for=condition=Ready=False", "--timeout=10s")
    assert hand.read("service/resnet")["spec"]["ports"][0]["port"] == 9999
    assert [reason for reason, _ in hand.events()].count("Mended") == 1


def a_policy(name: str, namespace: str, resource: str, operation: str) -> list[dict[str, Any]]:
    """A ValidatingAdmissionPolicy, with its binding, that refuses one operation on a kind of apps/v1."""
    rule = {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": [operation], "resources": [resource]}
    validation = {"expression": "false", "message": "not on a Friday"}
    of_namespace = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    api, about = "admissionregistration.k8s.io/v1", {"name": name}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}
    bound = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": of_namespace}}
    return [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": about, "spec": spec},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": about, "spec": bound},
    ]


def test_workers_stay_although_a_policy_lets_nobody_change_their_deployment(hand: Hand):
    hand.serve(a_body())
    before, name = hand.deployment().metadata.uid, f"frozen-{hand.namespace}"
    bodies = a_policy(name, hand.namespace, "deployments", "UPDATE")
    hand.cluster.kubectl("apply", "-f", "-", input=json.dumps({"kind": "List", "apiVersion": "v1", "items": bodies}))
    try:
        eventually(lambda: is_frozen(hand), within=30)
        hand.patch("resnet", serving={"resources": {"requests": {"cpu": "123m"}}})
        assert "not on a Friday" in hand.is_reason("Ready", "SpecRejected", within=30)
        assert hand.deployment().metadata.uid == before
        assert "Recreated" not in dict(hand.events())
    finally:
        hand.cluster.kubectl(
            "delete", f"validatingadmissionpolicybinding/{name}", f"validatingadmissionpolicy/{name}", "--timeout=20s"
        )


def is_frozen(hand: Hand) -> bool:
    """Whether the policy is in force by now; it takes the API server a moment."""
    change = {"metadata": {"annotations": {"example.com/tried": "yes"}}}
    try:
        hand.apps.patch_namespaced_deployment("resnet-worker", hand.namespace, change, dry_run="All")
    except ApiException as error:
        return bool(error.status == 422)
    return False


def test_a_claim_is_never_made_anew(hand: Hand):
    hand.create(a_body())
    before = eventually(lambda: hand.jobs(), within=20) and hand.read("pvc/resnet-prepared")
    hand.patch("resnet", storage={"pvc": {"accessModes": ["ReadWriteMany"]}})
    assert "set spec.storage to what the claim has" in hand.is_reason("Ready", "SpecRejected")
    assert hand.read("pvc/resnet-prepared")["metadata"]["uid"] == before["metadata"]["uid"]
    hand.patch("resnet", storage=None)
    hand.is_reason("Ready", "Preparing")


def test_what_ties_an_object_to_its_model_is_given_back_and_then_nothing_is_written(hand: Hand):
    hand.create(a_body())
    job = eventually(lambda: hand.jobs(), within=20)[0].metadata.name
    hand.edit(f"job/{job}", {"op": "remove", "path": "/metadata/ownerReferences"})
    eventually(lambda: hand.read(f"job/{job}")["metadata"].get("ownerReferences"), within=20)
    hand.prepare()
    eventually(lambda: hand.deployment(), within=20)
    catalog = eventually(lambda: hand.get()["status"].get("catalog"), within=10)["configMap"]
    names = (
        "deployment/resnet-worker",
        "pvc/resnet-prepared",
        "pdb/resnet-worker",
        "service/resnet",
        "role/resnet-worker",
    )
    for what in (*names, f"cm/{catalog}"):
        before = hand.read(what)["metadata"]
        hand.edit(what, {"op": "remove", "path": "/metadata/ownerReferences"})
        hand.cluster.kubectl(
            "label", "-n", hand.namespace, what, "app.kubernetes.io/name=other", "apparate.dev/model-", "--overwrite"
        )

        def restored(what: str = what, before: Any = before) -> bool:
            now = hand.read(what)["metadata"]
            return all(now.get(part) == before[part] for part in ("labels", "ownerReferences"))

        eventually(restored, within=20)
    hand.cluster.kubectl("label", "-n", hand.namespace, "deployment/resnet-worker", "apparate.dev/uid-")
    eventually(lambda: "apparate.dev/uid" in hand.deployment().metadata.labels, within=20)
    hand.cluster.kubectl("annotate", "-n", hand.namespace, "deployment/resnet-worker", "apparate.dev/scaled-by-")
    eventually(lambda: "apparate.dev/scaled-by" in hand.deployment().metadata.annotations, within=20)
    hand.delete()
    assert eventually(lambda: not hand.leftovers(), within=30)


def test_labels_and_owners_of_others_stay(hand: Hand):
    hand.serve(a_body())
    labels = {"op": "add", "path": "/metadata/labels/team", "value": "shop"}
    hand.edit("deployment/resnet-worker", labels, {"op": "remove", "path": "/metadata/ownerReferences"})
    eventually(lambda: hand.deployment().metadata.owner_references, within=20)
    assert hand.deployment().metadata.labels["team"] == "shop"


QUOTA = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}


def test_jobs_and_workers_that_get_no_pods_say_which_quota_is_in_the_way_and_go_on_without_it(hand: Hand):
    hand.cluster.apply(QUOTA, namespace=hand.namespace)
    eventually(lambda: hand.read("quota/none").get("status", {}).get("hard"), within=20)
    hand.create(a_body())
    message = hand.is_reason("Prepared", "QuotaExceeded", within=50)
    assert "exceeded quota: none" in message
    assert hand.condition("Ready")[1] == "QuotaExceeded"
    hand.prepare()
    assert "exceeded quota: none" in hand.is_reason("WorkersReady", "QuotaExceeded", within=30)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"securityContext": {"container": {"runAsUser": 0}}}, "PodSecurity"),
        ({"priorityClassName": "gone"}, "no PriorityClass with name gone"),
    ],
    ids=["pod-security", "priority-class"],
)
def test_a_job_that_gets_no_pod_says_why(control_plane: kube.Cluster, template: dict[str, Any], said: str):
    with control_plane.namespace({"pod-security.kubernetes.io/enforce": "restricted"}) as namespace:
        hand = Hand(control_plane, namespace)
        hand.create(a_body(serving={"template": template}))
        assert said in hand.is_reason("Prepared", "PodRefused", within=50)
        hand.patch("resnet", serving={"template": dict.fromkeys(template)})
        hand.is_reason("Ready", "Preparing", within=30)
