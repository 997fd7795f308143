"""What else is in a cluster, and what becomes of it while the operator works."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest
from kubernetes.client import ApiException

from support import kube
from support.eventually import eventually
from support.helm import a_stand_in, established
from support.models_on_kubernetes import a_body
from support.operator import Hand, an_operator

pytestmark = [pytest.mark.cluster]


@pytest.fixture
def stand_ins(control_plane: kube.Cluster) -> Iterator[None]:
    """Takes away what stands in for APIs of others."""
    yield
    control_plane.delete_crds("-l", "stand-in=true")


def test_an_api_that_is_there_in_part_is_no_hindrance_and_is_used_when_the_rest_comes(
    control_plane: kube.Cluster, hand: Hand, stand_ins: None
):
    parts = a_stand_in("ServiceMonitor"), a_stand_in("TriggerAuthentication", "keda.sh", "v1alpha1")
    rest = a_stand_in("PodMonitor"), a_stand_in("ScaledObject", "keda.sh", "v1alpha1")
    control_plane.apply(*parts)
    for one in parts:
        established(control_plane, one["metadata"]["name"])
    body = a_body(autoscaling={"kind": "keda", "maxReplicas": 2})
    with an_operator(control_plane, hand.namespace, resync_seconds="2", monitor_labels="release=kps"):
        hand.serve(body)
        assert "install KEDA" in hand.condition("WorkersReady")[2]
        control_plane.apply(*rest)
        made = ("podmonitors,scaledobjects", "-n", hand.namespace, "-o", "name")
        names = {"podmonitor.monitoring.coreos.com/resnet-worker", "scaledobject.keda.sh/resnet-worker"}
        for one in rest:
            established(control_plane, one["metadata"]["name"])
        eventually(lambda: set(control_plane.kubectl("get", *made).split()) == names, within=40)
        assert hand.read("podmonitor/resnet-worker")["metadata"]["labels"]["release"] == "kps"
        hand.is_reason("Ready", "Ready")


def test_a_model_that_is_deleted_and_made_again_at_once_waits_for_what_goes_and_no_longer(
    control_plane: kube.Cluster, hand: Hand
):
    name, kind = "resnet-prepared", {"apiVersion": "apparate.dev/v1alpha1", "kind": "EarlyExitModel"}
    of_the_first = kind | {"name": "resnet", "uid": str(uuid.uuid4()), "controller": True}
    meta = {"name": name, "ownerReferences": [of_the_first], "finalizers": ["example.com/in-use"]}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    hand.core.create_namespaced_persistent_volume_claim(hand.namespace, {"metadata": meta, "spec": spec})
    with an_operator(control_plane, hand.namespace):
        hand.create(a_body())
        message = hand.is_reason("Ready", "Preparing")
        assert f"PersistentVolumeClaim {name} is of a model of this name that was deleted" in message
        hand.edit(f"pvc/{name}", {"op": "replace", "path": "/metadata/finalizers", "value": []})
        with contextlib.suppress(ApiException):  # the garbage collector was quicker
            hand.core.delete_namespaced_persistent_volume_claim(name, hand.namespace)
        eventually(lambda: hand.jobs(), within=40)  # well before what was refused is tried again
        assert "ReconcileFailed" not in dict(hand.events())


def test_a_claim_that_somebody_deleted_is_made_anew_and_what_was_in_it_is_prepared_again(
    control_plane: kube.Cluster, hand: Hand
):
    with an_operator(control_plane, hand.namespace, resync_seconds="2"):
        hand.serve(a_body())
        catalog = hand.get()["status"]["catalog"]["configMap"]
        before = hand.read("pvc/resnet-prepared")["metadata"]["uid"]
        hand.core.delete_namespaced_persistent_volume_claim("resnet-prepared", hand.namespace)
        message = eventually(lambda: dict(hand.events()).get("StorageLost"), within=40)
        assert "resnet-prepared was gone" in message
        assert hand.read("pvc/resnet-prepared")["metadata"]["uid"] != before
        assert f"configmap/{catalog}" not in hand.leftovers()
        hand.is_reason("Prepared", "Preparing")
        hand.prepare()
        hand.is_reason("Prepared", "Prepared")
