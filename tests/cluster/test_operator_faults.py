"""Operators that lose their network, their rights, their lead or their lives."""

from __future__ import annotations

import asyncio
import copy
import signal
from pathlib import Path
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
SHARE = {"apiVersion": "apparate.dev/v1alpha1", "kind": "EarlyExitModel"}


@pytest.fixture
def hand(control_plane: kube.Cluster, namespace: str, crd: Any) -> Hand:
    return Hand(control_plane, namespace)


async def test_after_a_connection_that_swallowed_everything_changes_are_followed_again(
    control_plane: kube.Cluster, hand: Hand
):
    port = int(control_plane.url.rpartition(":")[2])
    async with TcpProxy(port) as proxy:
        server = f"https://127.0.0.1:{proxy.port}"
        through = control_plane.kubeconfig_at(server)
        running = await asyncio.to_thread(
            lambda: (
                (made := an_operator(control_plane, hand.namespace, kubeconfig=through)) and (made, made.__enter__())
            )
        )
        manager, operator = running
        try:
            await asyncio.to_thread(operator.settle)
            await asyncio.to_thread(hand.serve, a_body())
            proxy.swallow()
            await asyncio.sleep(12)  # longer than a watch may be silent here
            await asyncio.to_thread(hand.patch, "resnet", serving={"replicas": 3})
            proxy.resume()
            await eventually_async(lambda: asyncio.to_thread(lambda: hand.deployment().spec.replicas == 3), within=60)
            assert operator.process.popen.poll() is None
        finally:
            await asyncio.to_thread(manager.__exit__, None, None, None)


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


def test_without_its_kind_of_object_it_says_what_to_install(own_control_plane: kube.ControlPlane):
    with an_operator(own_control_plane, "default") as operator:
        _, problems = eventually(
            lambda: found if "install" in str((found := operator.health())[1]) else None, within=20
        )
        assert "CustomResourceDefinition" in problems[0]


def test_a_definition_that_lacks_fields_of_this_version_is_told_until_it_is_upgraded(
    own_control_plane: kube.ControlPlane,
):
    newest = crd()
    old = copy.deepcopy(newest)
    old["metadata"]["annotations"][DIGEST] = "0123456789abcdef"
    schema = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["budget"]["properties"]["rampOverhead"]
    own_control_plane.install_crd(old)
    hand = Hand(own_control_plane, "default")
    with an_operator(own_control_plane, "default", resync_seconds="2") as operator:
        operator.settle()
        eventually(lambda: "CRDOutdated" in str(operator.readiness()), within=20)
        status, problems = operator.readiness()
        assert (status, operator.health()[0]) == (503, 200)
        assert "spec.budget.rampOverhead" in problems[0]
        assert operator.metric("apparate_operator_crd_outdated ") == 1
        hand.serve(a_body())
        assert "CRDOutdated" in hand.condition("Ready")[2]
        own_control_plane.install_crd(newest)
        eventually(lambda: "CRDOutdated" not in hand.condition("Ready")[2], within=20)
        assert operator.readiness()[0] == 200


def test_without_the_right_to_read_the_definition_it_works_and_warns(control_plane: kube.Cluster, hand: Hand):
    hand.core.create_namespaced_service_account(hand.namespace, {"metadata": {"name": "operator"}})
    grant = ("create", "rolebinding", "operator", "--clusterrole=cluster-admin", "-n", hand.namespace)
    control_plane.kubectl(*grant, f"--serviceaccount={hand.namespace}:operator")
    kubeconfig = control_plane.kubeconfig_of(hand.namespace, "operator")
    with an_operator(control_plane, hand.namespace, kubeconfig=kubeconfig) as operator:
        operator.settle()
        eventually(lambda: "is of this version is not known" in operator.log, within=10)
        assert operator.readiness()[0] == 200


def test_a_restarted_operator_writes_nothing_to_what_is_as_it_should_be(control_plane: kube.Cluster, hand: Hand):
    with an_operator(control_plane, hand.namespace):
        for n in range(3):
            hand.serve(a_body(f"model{n}"))
    with an_operator(control_plane, hand.namespace) as operator:
        operator.settle()
        eventually(lambda: operator.metric('apparate_operator_reconciles_total{result="done"}') >= 3, within=20)
        assert operator.writes() == 0


def test_when_the_leader_is_killed_another_replica_takes_over_and_makes_nothing_twice(
    control_plane: kube.Cluster, hand: Hand
):
    with (
        an_operator(control_plane, hand.namespace, name="first") as first,
        an_operator(control_plane, hand.namespace, name="second") as second,
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
        control_plane.kubectl("delete", "crd", "clusterkopfpeerings.kopf.dev", "--timeout=60s")


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


def test_two_writers_of_one_status_lose_nothing_of_each_other(control_plane: kube.Cluster, hand: Hand):
    with an_operator(control_plane, hand.namespace) as operator:
        hand.serve(a_body())
        for n in range(1, 41):
            hand.patch("resnet", serving={"maxQueue": 100 + n})
            plan = {"revision": n, "ramps": [{"ramp": 0, "threshold": 0.5}]}
            meta = {"name": "resnet", "namespace": hand.namespace}
            control_plane.kubectl(
                "apply", "--server-side", "--subresource=status", "--field-manager=apparate-controller", "-f", "-",
                input=yaml.safe_dump({**SHARE, "metadata": meta, "status": {"plan": plan}}),
            )  # fmt: skip
        wanted = hand.get()["metadata"]["generation"]
        eventually(lambda: hand.get()["status"]["observedGeneration"] == wanted, within=20)
        assert hand.get()["status"]["plan"]["revision"] == 40
        assert operator.metric('apparate_operator_reconciles_total{result="api"}') == 0


def test_many_models_at_once_are_all_looked_after_in_little_memory(control_plane: kube.Cluster, hand: Hand):
    with an_operator(control_plane, hand.namespace) as operator:
        operator.settle()
        bodies = [a_body(f"model{n}") for n in range(40)]
        for body in bodies:
            body["metadata"]["namespace"] = hand.namespace
        control_plane.apply(*bodies)
        eventually(lambda: len(hand.batch.list_namespaced_job(hand.namespace).items) == 40, within=60)
        eventually(lambda: operator.metric("apparate_operator_waiting_models ") == 0, within=20)
        text = Path(f"/proc/{operator.process.pid}/status").read_text()
        assert int(text.partition("VmRSS:")[2].split()[0]) < 250 * 1024
