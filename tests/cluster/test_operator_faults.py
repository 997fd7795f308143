"""Operators that lose their network, their rights, their lead or their lives."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from apparate.contract.schema import DIGEST, crd
from support import kube
from support.eventually import eventually, eventually_async
from support.models_on_kubernetes import a_body
from support.operator import TAKES_OVER_WITHIN_S, Hand, an_operator
from support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.cluster]


async def test_after_a_connection_that_swallowed_everything_changes_are_followed_again(
    control_plane: kube.Cluster, hand: Hand
):
    port = int(control_plane.url.rpartition(":")[2])
    async with TcpProxy(port) as proxy:
        through = control_plane.kubeconfig_at(f"https://127.0.0.1:{proxy.port}")
        running = an_operator(control_plane, hand.namespace, kubeconfig=through)
        with contextlib.ExitStack() as stack:
            operator = await asyncio.to_thread(stack.enter_context, running)
            await asyncio.to_thread(operator.settle)
            await asyncio.to_thread(hand.serve, a_body())
            proxy.swallow()
            await asyncio.to_thread(hand.patch, "resnet", serving={"replicas": 3})
            await asyncio.sleep(2)
            proxy.heal()  # no connection of before is ever told
            await eventually_async(lambda: asyncio.to_thread(lambda: hand.deployment().spec.replicas == 3), within=60)
            assert operator.process.popen.poll() is None
            await asyncio.to_thread(stack.close)


def test_without_a_right_that_it_needs_it_says_which_and_goes_on_when_it_is_granted(
    control_plane: kube.Cluster, hand: Hand
):
    hand.core.create_namespaced_service_account(hand.namespace, {"metadata": {"name": "operator"}})
    kubeconfig = control_plane.kubeconfig_of(hand.namespace, "operator")
    with an_operator(control_plane, hand.namespace, kubeconfig=kubeconfig) as operator:
        status, problems = eventually(
            lambda: found if "may not" in str((found := operator.health())[1]) else None, within=20
        )
        assert status == 503
        assert any("may not" in one and "earlyexitmodels" in one for one in problems)
        hand.create(a_body())
        grant = ("create", "rolebinding", "operator", "--clusterrole=cluster-admin", "-n", hand.namespace)
        control_plane.kubectl(*grant, f"--serviceaccount={hand.namespace}:operator")
        hand.is_reason("Ready", "Preparing", within=30)
        eventually(lambda: operator.health()[0] == 200, within=20)


@pytest.fixture(scope="module")
def _bare() -> Iterator[kube.ControlPlane]:
    with kube.a_control_plane() as plane:
        yield plane


@pytest.fixture
def bare(_bare: kube.ControlPlane) -> kube.ControlPlane:
    """A control plane for tests that bring, or do without, the CustomResourceDefinition themselves."""
    _bare.delete_crds("earlyexitmodels.apparate.dev")
    return _bare


def test_without_its_kind_of_object_it_says_what_to_install(bare: kube.ControlPlane):
    with an_operator(bare, "default") as operator:
        _, problems = eventually(
            lambda: found if "install" in str((found := operator.health())[1]) else None, within=20
        )
        assert "CustomResourceDefinition" in problems[0]


def test_when_its_kind_of_object_is_deleted_the_last_word_says_what_to_install(bare: kube.ControlPlane):
    bare.install_crd(crd())
    with an_operator(bare, "default") as operator:
        operator.settle()
        bare.delete_crds("earlyexitmodels.apparate.dev")
        assert operator.process.wait(60) == 1  # whoever starts it again has it wait for the definition
        last = json.loads(operator.process.err[-1])
    assert last["event"] == "the operator stops"
    assert "install the CustomResourceDefinition of this version" in last["why"]


def test_a_definition_that_lacks_fields_of_this_version_is_told_until_it_is_upgraded(bare: kube.ControlPlane):
    newest = crd()
    old = copy.deepcopy(newest)
    old["metadata"]["annotations"][DIGEST] = "0123456789abcdef"
    schema = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["budget"]["properties"]["rampOverhead"]
    bare.install_crd(old)
    hand = Hand(bare, "default")
    with an_operator(bare, "default", resync_seconds="2") as operator:
        operator.settle()
        eventually(lambda: "CRDOutdated" in str(operator.readiness()), within=20)
        status, problems = operator.readiness()
        assert (status, operator.health()[0]) == (503, 200)
        assert "spec.budget.rampOverhead" in problems[0]
        assert operator.metric("apparate_operator_crd_outdated ") == 1
        hand.serve(a_body())
        assert "CRDOutdated" in hand.condition("Ready")[2]
        bare.install_crd(newest)
        eventually(lambda: "CRDOutdated" not in hand.condition("Ready")[2], within=20)
        assert operator.readiness()[0] == 200


def test_a_model_with_a_field_of_a_newer_version_is_told_so_and_keeps_what_its_status_had(bare: kube.ControlPlane):
    newer = copy.deepcopy(crd())
    newer["metadata"]["annotations"][DIGEST] = "fedcba9876543210"
    spec = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["budget"]["properties"]["joules"] = {"type": "number"}
    bare.install_crd(newer)
    hand = Hand(bare, "default")
    with an_operator(bare, "default"):
        hand.serve(a_body("newer"))
        before = hand.get("newer")["status"]
        hand.patch("newer", budget={"joules": 1.5})
        assert "spec.budget.joules" in hand.is_reason("Ready", "SpecRejected", "newer")
        status = hand.get("newer")["status"]
        kept = ("catalog", "replicas", "readyReplicas", "selector")
        assert {name: status[name] for name in kept} == {name: before[name] for name in kept}
        assert hand.condition("Prepared", "newer")[0] == "True"
        hand.patch("newer", budget={"joules": None})
        hand.is_reason("Ready", "Ready", "newer")


def test_without_the_right_to_read_the_definition_it_works_and_warns(control_plane: kube.Cluster, hand: Hand):
    hand.core.create_namespaced_service_account(hand.namespace, {"metadata": {"name": "operator"}})
    grant = ("create", "rolebinding", "operator", "--clusterrole=cluster-admin", "-n", hand.namespace)
    control_plane.kubectl(*grant, f"--serviceaccount={hand.namespace}:operator")
    kubeconfig = control_plane.kubeconfig_of(hand.namespace, "operator")
    with an_operator(control_plane, hand.namespace, kubeconfig=kubeconfig) as operator:
        operator.settle()
        eventually(lambda: "is of this version is not known" in operator.log, within=10)
        assert operator.readiness()[0] == 200


def test_what_is_as_it_should_be_is_not_written_again_nor_by_a_restarted_operator(
    control_plane: kube.Cluster, hand: Hand
):
    with an_operator(control_plane, hand.namespace, resync_seconds="2") as operator:
        for n in range(3):
            hand.serve(a_body(f"model{n}"))
        looks = 'apparate_operator_reconciles_total{result="done"}'
        settled = operator.metric(looks)
        eventually(lambda: operator.metric(looks) >= settled + 6, within=20)  # the Events about it are written too
        before, versions = operator.writes(), [hand.get(f"model{n}")["metadata"]["resourceVersion"] for n in range(3)]
        settled = operator.metric(looks)
        eventually(lambda: operator.metric(looks) >= settled + 6, within=20)
        assert operator.writes() == before
        assert [hand.get(f"model{n}")["metadata"]["resourceVersion"] for n in range(3)] == versions
    with an_operator(control_plane, hand.namespace) as operator:
        operator.settle()
        eventually(lambda: operator.metric('apparate_operator_reconciles_total{result="done"}') >= 3, within=20)
        assert operator.writes() == 0


def test_when_the_leader_is_killed_another_replica_takes_over_and_makes_nothing_twice(
    control_plane: kube.Cluster, hand: Hand
):
    with (
        an_operator(control_plane, hand.namespace, name="first", lease_seconds="3") as first,
        an_operator(control_plane, hand.namespace, name="second", lease_seconds="3") as second,
    ):
        leader, other = eventually(
            lambda: next(
                ((a, b) for a, b in ((first, second), (second, first)) if a.metric("apparate_operator_leading ") == 1),
                None,
            ),
            within=40,
        )
        hand.create(a_body("before"))
        eventually(lambda: hand.jobs("before"), within=20)
        leader.process.send(signal.SIGKILL)
        hand.create(a_body("after"))
        eventually(lambda: hand.jobs("after"), within=TAKES_OVER_WITHIN_S)
        assert other.metric("apparate_operator_leading ") == 1
        assert len(hand.jobs("before")) == len(hand.jobs("after")) == 1


def test_a_leader_that_is_told_to_stop_hands_over_at_once(control_plane: kube.Cluster, hand: Hand):
    with an_operator(control_plane, hand.namespace, name="first") as first:
        first.settle()
        with an_operator(control_plane, hand.namespace, name="second") as second:
            eventually(lambda: second.health()[0] == 200, within=30)
            first.process.send(signal.SIGTERM)
            assert first.process.wait(25) == 0
            lease = control_plane.get("lease", "apparate-operator", "-n", hand.namespace)
            assert lease["spec"].get("holderIdentity", "") in ("", "second")  # nobody waits for it to expire
            eventually(lambda: second.metric("apparate_operator_leading ") == 1, within=TAKES_OVER_WITHIN_S)


def test_a_peering_object_of_another_kopf_operator_does_not_stop_it(control_plane: kube.Cluster, hand: Hand):
    control_plane.install_crd(peering())
    peer = {"priority": 1000, "lastseen": "2099-01-01T00:00:00", "lifetime": 3600}
    control_plane.apply(
        {
            "apiVersion": "kopf.dev/v1",
            "kind": "ClusterKopfPeering",
            "metadata": {"name": "default"},
            "status": {"other": peer},
        }
    )
    try:
        with an_operator(control_plane, hand.namespace):
            hand.create(a_body())
            eventually(lambda: hand.jobs(), within=30)
    finally:
        control_plane.delete_crds("clusterkopfpeerings.kopf.dev")


def peering() -> dict[str, Any]:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "ClusterKopfPeering", "plural": "clusterkopfpeerings", "singular": "clusterkopfpeering"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterkopfpeerings.kopf.dev"},
        "spec": {"group": "kopf.dev", "scope": "Cluster", "names": names, "versions": [version]},
    }


def test_what_somebody_changed_while_no_operator_ran_is_mended_by_the_next(control_plane: kube.Cluster, hand: Hand):
    with an_operator(control_plane, hand.namespace):
        hand.serve(a_body())
    image = {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "other:1"}
    hand.edit("deployment/resnet-worker", image)
    hand.edit("pvc/resnet-prepared", {"op": "remove", "path": "/metadata/ownerReferences"})
    with an_operator(control_plane, hand.namespace):
        eventually(lambda: hand.deployment().spec.template.spec.containers[0].image != "other:1", within=30)
        eventually(lambda: hand.read("pvc/resnet-prepared")["metadata"].get("ownerReferences"), within=20)


def test_an_object_with_another_value_where_none_may_be_changed_is_made_anew(control_plane: kube.Cluster, hand: Hand):
    names = ("rolebinding/resnet-worker", "secret/resnet-redis", "deployment/resnet-worker")
    with an_operator(control_plane, hand.namespace):
        hand.serve(a_body())
    binding, secret, deployment = (hand.read(one) for one in names)
    binding["roleRef"]["name"] = "other"
    secret |= {"immutable": True, "data": {"url": "bm8="}}
    deployment["spec"]["selector"]["matchLabels"]["other"] = "one"
    deployment["spec"]["template"]["metadata"]["labels"]["other"] = "one"
    for body in (binding, secret, deployment):
        for name in ("uid", "resourceVersion", "managedFields", "creationTimestamp"):
            body["metadata"].pop(name, None)
        control_plane.kubectl("replace", "--force", "--grace-period=0", "-f", "-", input=json.dumps(body))
    with an_operator(control_plane, hand.namespace):
        told = eventually(
            lambda: found if len(found := [text for why, text in hand.events() if why == "Recreated"]) == 3 else None,
            within=30,
        )
        assert all(any(name in text for text in told) for name in ("RoleBinding", "Secret", "Deployment"))
        assert hand.read(names[0])["roleRef"]["name"] == "resnet-worker"
        assert hand.read(names[1])["data"]["url"] != "bm8="
        assert "other" not in hand.deployment().spec.selector.match_labels
        eventually(lambda: hand.start_workers() or hand.condition("Ready")[0] == "True", within=30)


def test_deleting_a_model_leaves_nothing_behind_even_without_an_operator(control_plane: kube.Cluster, hand: Hand):
    cascades = ("background", "foreground")
    with an_operator(control_plane, hand.namespace):
        for cascade in cascades:
            hand.create(a_body(cascade))
            hand.prepare(cascade)
        for cascade in cascades:
            eventually(lambda name=cascade: hand.deployment(name), within=20)
    for cascade in cascades:
        hand.cluster.kubectl("delete", "eem", cascade, "-n", hand.namespace, f"--cascade={cascade}", "--timeout=60s")
    assert eventually(lambda: not hand.leftovers(), within=60)


def test_when_a_right_is_taken_away_the_last_word_says_which_and_what_grants_it(
    control_plane: kube.Cluster, hand: Hand
):
    hand.core.create_namespaced_service_account(hand.namespace, {"metadata": {"name": "operator"}})
    grant = ("create", "rolebinding", "operator", "--clusterrole=cluster-admin", "-n", hand.namespace)
    control_plane.kubectl(*grant, f"--serviceaccount={hand.namespace}:operator")
    kubeconfig = control_plane.kubeconfig_of(hand.namespace, "operator")
    with an_operator(control_plane, hand.namespace, kubeconfig=kubeconfig, resync_seconds="2") as operator:
        operator.settle()
        control_plane.kubectl("delete", "rolebinding", "operator", "-n", hand.namespace)
        assert operator.process.wait(40) == 1
        last = json.loads(operator.process.err[-1])
        assert last["event"] == "the operator stops"
        assert f"may not get, list, watch pods.v1 in namespace {hand.namespace}" in last["why"]
        assert "rbac.create" in last["why"]


def test_credentials_that_the_api_server_refuses_are_told_as_such(control_plane: kube.Cluster, hand: Hand):
    known = yaml.safe_load(control_plane.kubeconfig.read_text())
    known["users"][0]["user"] = {"token": "expired"}
    kubeconfig = control_plane.folder / "expired.kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(known))
    with an_operator(control_plane, hand.namespace, kubeconfig=kubeconfig) as operator:
        said = eventually(lambda: found if "refused" in str(found := operator.health()[1]) else None, within=20)
        assert "the API server refused the operator's credentials" in said[0]
        assert "401" in said[0]


def test_secrets_of_an_earlier_setting_go_when_no_worker_needs_them_any_more(control_plane: kube.Cluster, hand: Hand):
    with an_operator(control_plane, hand.namespace):
        hand.serve(a_body())
    assert "secret/resnet-redis" in hand.leftovers()
    with an_operator(control_plane, hand.namespace, redis_url="", redis_secret="own", resync_seconds="2") as operator:
        eventually(lambda: len(hand.pods("worker")) == 2, within=30)  # the new one waits to be ready
        assert "secret/resnet-redis" in hand.leftovers()
        hand.start_workers()
        eventually(lambda: "secret/resnet-redis" not in hand.leftovers(), within=30)
        assert operator.metric('apparate_operator_writes_total{kind="Secret",verb="delete"}') == 1
