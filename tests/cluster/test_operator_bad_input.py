"""What a model asks for and the cluster has not: told with the next step, and over by itself when it is there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from support import kube
from support.eventually import eventually
from support.models_on_kubernetes import a_body
from support.operator import Hand, RunningOperator, an_operator_for_all

pytestmark = [pytest.mark.cluster]
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
NO_GPU = UNSCHEDULED | {"message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."}
NO_CLAIM = UNSCHEDULED | {"message": '0/2 nodes are available: persistentvolumeclaim "models" not found.'}


@pytest.fixture(scope="module", autouse=True)
def operator(control_plane: kube.Cluster) -> Iterator[RunningOperator]:
    with an_operator_for_all(control_plane, "bad-input") as running:
        yield running


def waiting(container: str, reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    of = {"name": container, "ready": False, "restartCount": 0, "image": "w", "imageID": "w", "state": state}
    return {"conditions": [{"type": "PodScheduled", "status": "True"}], "containerStatuses": [of]}


@pytest.mark.parametrize(
    ("status", "reason", "step"),
    [
        ({"conditions": [NO_GPU]}, "Unschedulable", "free nvidia.com/gpu"),
        ({"conditions": [NO_CLAIM]}, "StoragePending", "make the claim"),
        (
            waiting("prepare", "CreateContainerConfigError", 'secret "s3" not found'),
            "SecretNotFound",
            "check the Secret",
        ),
        (
            waiting("prepare", "CreateContainerConfigError", "couldn't find key token in Secret a/b"),
            "SecretLacksKey",
            "check the Secret",
        ),
        (waiting("prepare", "ErrImagePull", "w:1: not found"), "ImagePullBackOff", "check spec.serving.image"),
    ],
    ids=["gpu", "claim", "secret", "key", "image"],
)
def test_what_a_preparation_waits_for_is_told_until_it_is_there(
    hand: Hand, status: dict[str, Any], reason: str, step: str
):
    hand.create(a_body())
    (pod,) = eventually(lambda: hand.pods("prepare"), within=20)
    hand.pod_status(pod, **status)
    assert step in hand.is_reason("Ready", reason)
    there = {"name": "prepare", "ready": True, "restartCount": 0, "image": "w", "imageID": "w"}
    runs = there | {"state": {"running": {"startedAt": "2026-11-30T12:00:00Z"}}}
    hand.pod_status(
        pod, phase="Running", conditions=[{"type": "PodScheduled", "status": "True"}], containerStatuses=[runs]
    )
    hand.is_reason("Ready", "Preparing")


def test_an_image_name_that_is_none_is_told_and_the_job_replaced_when_it_is_mended(hand: Hand):
    hand.create(a_body(serving={"image": "W:1"}))
    (pod,) = eventually(lambda: hand.pods("prepare"), within=20)
    hand.pod_status(pod, **waiting("prepare", "InvalidImageName", "invalid reference format"))
    assert "correct spec.serving.image" in hand.is_reason("Ready", "InvalidImageName")
    hand.patch("resnet", serving={"image": "worker:2"})
    hand.is_reason("Ready", "Preparing")
    images = lambda: [job.spec.template.spec.containers[0].image for job in hand.jobs()]  # noqa: E731
    eventually(lambda: images() == ["worker:2"], within=20)


@contextlib.contextmanager
def a_volume(hand: Hand, *, grows: bool) -> Iterator[str]:
    """A StorageClass with one volume, which the model's claim is bound to."""
    name = f"{hand.namespace}-{'grows' if grows else 'stays'}"
    storage = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    volume = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": name,
        "hostPath": {"path": "/nowhere"},
    }
    hand.cluster.apply(
        storage | {"provisioner": "example.com/none", "allowVolumeExpansion": grows},
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
    )
    try:
        yield name
    finally:
        hand.delete()
        hand.cluster.kubectl("delete", f"storageclass/{name}", f"pv/{name}", "--wait=false")


@pytest.mark.parametrize("grows", [True, False], ids=["grows", "stays"])
def test_a_claim_that_is_too_small_grows_where_its_class_lets_it_and_else_says_what_to_do(hand: Hand, grows: bool):
    with a_volume(hand, grows=grows) as storage:
        hand.create(a_body(storage={"pvc": {"size": "10Gi", "storageClassName": storage}}))
        claim = lambda: hand.read("pvc/resnet-prepared")  # noqa: E731
        eventually(lambda: hand.jobs() and claim()["status"]["phase"] == "Bound", within=30)
        hand.patch("resnet", storage={"pvc": {"size": "20Gi"}})
        if grows:
            eventually(lambda: claim()["spec"]["resources"]["requests"]["storage"] == "20Gi", within=20)
            hand.is_reason("Ready", "Preparing")
            return
        message = hand.is_reason("Ready", "SpecRejected")
        assert "must support resize" in message
        assert "name another" in message
        assert claim()["spec"]["resources"]["requests"]["storage"] == "10Gi"
        hand.patch("resnet", storage={"pvc": {"claimName": "larger", "size": None, "storageClassName": None}})
        hand.is_reason("Ready", "Preparing")


def test_a_rollout_that_waits_for_a_gpu_says_so_and_ends_when_there_is_one(hand: Hand):
    hand.serve(a_body(serving={"gpu": {"count": 1}, "replicas": 2}))
    olds = {pod.metadata.uid for pod in hand.pods("worker")}
    hand.patch("resnet", serving={"template": {"annotations": {"rolled": "yes"}}})
    news = lambda: [pod for pod in hand.pods("worker") if pod.metadata.uid not in olds]  # noqa: E731
    (new,) = eventually(news, within=20)  # in the place of one of the two: no GPU is spare
    hand.pod_status(new, conditions=[NO_GPU])
    message = hand.is_reason("WorkersReady", "RolloutBlocked")
    assert "the rollout waits for nvidia.com/gpu, which running workers hold" in message
    hand.start(new)  # its node has one
    second = eventually(lambda: next((pod for pod in news() if pod.metadata.uid != new.metadata.uid), None), within=20)
    hand.start(second)
    hand.is_reason("WorkersReady", "WorkersReady")


def test_a_new_image_that_is_none_is_told_while_the_old_workers_serve_and_is_over_when_it_is_mended(hand: Hand):
    hand.serve(a_body())
    (old,) = hand.pods("worker")
    hand.patch("resnet", serving={"image": "worker:none"})
    news = lambda: [pod for pod in hand.pods("worker") if pod.metadata.uid != old.metadata.uid]  # noqa: E731
    (new,) = eventually(news, within=20)
    hand.pod_status(new, **waiting("worker", "ImagePullBackOff", "worker:none: not found"))
    assert "check spec.serving.image" in hand.is_reason("Ready", "RolloutBlocked")
    assert hand.condition("Ready")[0] == "True"
    hand.patch("resnet", serving={"image": None})
    hand.is_reason("Ready", "Ready")
    assert [pod.metadata.uid for pod in hand.pods("worker") if not pod.metadata.deletion_timestamp] == [
        old.metadata.uid
    ]
