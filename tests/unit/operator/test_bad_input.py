"""What is wrong with what a model needs: said with a reason and the next step, and over by itself when it is mended."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from apparate.contract.resource import EarlyExitModel
from apparate.service.kube import KubeError
from apparate_operator.kinds import CLAIM, JOB, POD, Json
from apparate_operator.lifecycle import Apply, next_step
from apparate_operator.observed import observe
from apparate_operator.reconciler import refusal
from support.models_on_kubernetes import ENVIRONMENT, NOW, World, a_model, applied, conditions, serving

POD_NAME = "resnet-prepare-x"


def waits(reason: str, message: str) -> Json:
    return {"containerStatuses": [{"name": "prepare", "state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(code: int, reason: str, told: str) -> Json:
    over = {"exitCode": code, "reason": "Error", "message": json.dumps({"reason": reason, "message": told})}
    return {"phase": "Failed", "containerStatuses": [{"name": "prepare", "state": {"terminated": over}}]}


def unscheduled(message: str) -> Json:
    lacks = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {"phase": "Pending", "conditions": [lacks | {"message": f"0/3 nodes are available: {message}."}]}


WAITING: dict[str, tuple[Json, str, str]] = {
    "a gpu that no node has": (
        unscheduled("3 Insufficient nvidia.com/gpu"),
        "Unschedulable",
        "add a node that has it, or ask for less",
    ),
    "a node with a taint": (
        unscheduled("3 node(s) had untolerated taint {gpu: true}"),
        "Unschedulable",
        "add a toleration to the pod template",
    ),
    "a node that is not there": (
        unscheduled("3 node(s) didn't match Pod's node affinity/selector"),
        "Unschedulable",
        "check nodeSelector and affinity",
    ),
    "a claim that is not there": (
        unscheduled('persistentvolumeclaim "models" not found'),
        "StoragePending",
        "make the claim, or correct its name in pvc:// sources",
    ),
    "a class of storage that is not there": (
        unscheduled("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"),
        "StoragePending",
        "StorageClass of spec.storage.pvc.storageClassName",
    ),
    "a volume in another zone": (
        unscheduled("1 node(s) had volume node affinity conflict"),
        "Unschedulable",
        "the volume of a claim is on another node",
    ),
    "a secret that is not there": (
        waits("CreateContainerConfigError", 'secret "s3" not found'),
        "SecretNotFound",
        "check the Secrets",
    ),
    "a secret that lacks a key": (
        waits("CreateContainerConfigError", "couldn't find key token in Secret shop/hub"),
        "SecretLacksKey",
        "check the Secrets",
    ),
    "an image name that is none": (
        waits("InvalidImageName", 'Failed to apply default image tag "W:1": invalid reference format'),
        "InvalidImageName",
        "correct spec.serving.image",
    ),
    "an image that is not there": (
        waits("ImagePullBackOff", 'Back-off pulling image "ghcr.io/a/wrnog:1"'),
        "ImagePullBackOff",
        "check spec.serving.image, oci:// sources",
    ),
}
"""What keeps a pod from starting: its status, the reason, and words of the next step."""


def preparing(**spec: Any) -> tuple[EarlyExitModel, World]:
    model, world = a_model(**spec), World()
    world.do(model)
    return model, world


@pytest.mark.parametrize("case", WAITING.values(), ids=WAITING)
def test_what_keeps_a_preparation_from_starting_is_told_and_over_when_it_is_there(case: tuple[Json, str, str]):
    status, reason, step = case
    model, world = preparing()
    world.pod(model, POD_NAME, "prepare", **status)
    found = conditions(world.step(model))
    assert found["Prepared"][:2] == found["Ready"][:2] == ("False", reason)
    assert step in found["Ready"][2]
    world.pod(model, POD_NAME, "prepare", phase="Running")
    assert conditions(world.step(model))["Ready"][:2] == ("False", "Preparing")


@pytest.mark.parametrize("case", WAITING.values(), ids=WAITING)
def test_what_keeps_a_worker_from_starting_is_told_and_over_when_it_is_there(case: tuple[Json, str, str]):
    status, reason, step = case
    model = a_model()
    world = serving(model)
    world.workers(model, ready=0)
    world.pod(model, "resnet-worker-1", **status)
    found = conditions(world.step(model))
    assert found["WorkersReady"][:2] == found["Ready"][:2] == ("False", reason)
    assert step in found["Ready"][2]
    world.pod(model, "resnet-worker-1", phase="Running", conditions=[{"type": "Ready", "status": "True"}])
    world.workers(model, ready=1)
    assert conditions(world.step(model))["Ready"][:2] == ("True", "Ready")


@pytest.mark.parametrize(
    ("code", "reason", "told"),
    [
        (2, "SourceNotFound", "pvc://models/resnet.safetensors does not exist"),
        (2, "SourceDiffers", "SHA-256 of resnet.safetensors is 1, the document expects 2"),
        (2, "SecretLacksKey", "the Secret for s3://b/w has no AWS_SECRET_ACCESS_KEY"),
        (1, "StorageFull", "the store is full: raise spec.storage.pvc.size"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else "",
)
def test_what_a_preparation_lacks_is_told_in_its_own_words_and_it_is_tried_again(code: int, reason: str, told: str):
    model, world = preparing()
    world.job_fails(model)
    world.pod(model, POD_NAME, "prepare", **ended(code, reason, told))
    step = world.step(model)
    assert conditions(step)["Ready"][:2] == ("False", reason)
    assert f"{told}; tried again at 2026-11-30T12:00:30Z, or at once when" in conditions(step)["Ready"][2]
    later = NOW + timedelta(seconds=step.again_s or 0)
    assert applied(world.do(model, now=later), JOB)
    world.store.drop(POD, world.newest(model, POD))
    assert conditions(world.step(model, now=later))["Ready"][:2] == ("False", "Preparing")
    world.publish(model)
    world.do(model, now=later)
    world.workers(model, ready=1)
    assert conditions(world.step(model, now=later))["Ready"][:2] == ("True", "Ready")


@pytest.mark.parametrize(
    ("why", "step"),
    [
        ("DeadlineExceeded", "raise spec.prepare.activeDeadlineSeconds"),
        ("BackoffLimitExceeded", "see `kubectl logs` of the Job"),
        ("PodFailurePolicy", "see `kubectl describe job`"),
    ],
)
def test_a_job_that_fails_without_a_word_of_its_pods_says_what_to_do(why: str, step: str):
    model, world = preparing()
    world.job_fails(model, reason=why, message="Job was active too long")
    found = conditions(world.step(model))["Ready"]
    assert found[:2] == ("False", "PrepareFailed")
    assert f"failed: Job was active too long; {step}; tried again at" in found[2]
    assert applied(world.step(model, now=NOW + timedelta(seconds=30)), JOB)


def test_a_preparation_without_enough_memory_says_which_limit_to_raise():
    model, world = preparing()
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    world.pod(model, POD_NAME, "prepare", containerStatuses=[{"name": "prepare", "state": killed}])
    found = conditions(world.step(model))["Ready"]
    assert found[:2] == ("False", "OOMKilled")
    assert "raise resources.limits.memory" in found[2]


FROM_S3: Json = {"source": "s3://a/b", "credentials": {"secretName": "wrong"}}


@pytest.mark.parametrize(
    "mended",
    [
        {"serving": {"image": "worker:2"}},
        {"prepare": {"gpu": {"count": 1, "resourceName": "amd.com/gpu"}}},
        {"model": FROM_S3 | {"credentials": {"secretName": "right"}}},
    ],
    ids=["image", "gpu", "secret"],
)
def test_a_job_that_waits_for_what_is_not_there_is_replaced_when_the_spec_names_another(mended: Json):
    model, world = preparing(model=FROM_S3)
    world.pod(model, POD_NAME, "prepare", **WAITING["a secret that is not there"][0])
    old = world.newest(model, JOB)["metadata"]["name"]
    step = world.do(a_model(generation=2, **{"model": FROM_S3, **mended}))
    assert [name for kind, name in step.deletions if kind is JOB] == [old]
    assert [one["metadata"]["name"] for one in applied(step, JOB)] != [old]
    assert conditions(step)["Ready"][:2] == ("False", "Preparing")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "no room"}, "OutOfnvidia_com_gpu"),
        ({"phase": "Failed", "reason": "9 lives", "message": "no room"}, "lives"),
        ({"phase": "Failed", "reason": "!?", "message": "no room"}, "PodFailed"),
        (unscheduled("x") | {"conditions": [{**unscheduled("x")["conditions"][0], "reason": "Gang (waiting)"}]}, None),
        (ended(1, "my own words.", "what an image of the user's says"), "my_own_words"),
    ],
    ids=["kubelet", "digits", "no letter", "scheduler", "image"],
)
def test_a_reason_of_others_that_conditions_may_not_have_is_told_in_letters_they_may(status: Json, reason: str | None):
    model = a_model()
    world = serving(model)
    world.workers(model, ready=0)
    world.pod(model, "resnet-worker-1", **status)
    assert conditions(world.step(model))["Ready"][:2] == ("False", reason or "Gang_waiting")


def test_words_without_end_are_cut_before_the_next_step():
    body = {"code": 422, "message": "Invalid value: " + "x" * 100_000}
    error = KubeError(422, f"PATCH /apis/apps/v1: 422 {body['message']}")
    world, model = serving(a_model()), a_model()
    made = Apply(CLAIM, {"metadata": {"name": "resnet-prepared"}})
    step = next_step(
        model,
        observe(world.store.of(model.metadata.uid)),
        ENVIRONMENT,
        NOW,
        refused=refusal(made, error, mended=False),
    )
    status, reason, message = conditions(step)["Ready"]
    assert (status, reason) == ("False", "SpecRejected")
    assert len(message) < 4096
    assert message.endswith("set spec.storage to what the claim has, or name another")
