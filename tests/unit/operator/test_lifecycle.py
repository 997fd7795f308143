"""What is next for a model, by what it asks for and what is there."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from apparate.contract.labels import REVISION
from apparate.contract.resource import EarlyExitModel
from apparate.contract.revision import revision
from apparate_operator.kinds import AUTOSCALER, CLAIM, CONFIG_MAP, DEPLOYMENT, HANDOVER, JOB, SCALED_OBJECT, SECRET
from apparate_operator.lifecycle import next_step
from apparate_operator.manifests.common import Environment
from apparate_operator.observed import observe
from support.models_on_kubernetes import (
    ENVIRONMENT,
    NOW,
    World,
    a_catalog,
    a_model,
    applied,
    catalog_body,
    conditions,
    serving,
)

KEDA = Environment("worker:1", apis=frozenset({"keda.sh"}))
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": reason, "message": message}}}]}


def died(code: int, message: str = "", reason: str = "Error") -> dict[str, Any]:
    ended = {"terminated": {"exitCode": code, "reason": reason, "message": message}}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    return {"containerStatuses": [{"name": "worker", "restartCount": 3, "state": state, "lastState": ended}]}


def test_a_new_model_is_prepared_first():
    step = World().step(a_model())
    kinds = [one.kind.name for one in step.applies]
    assert kinds == ["PersistentVolumeClaim", "ServiceAccount", "Role", "RoleBinding", "Job"]
    assert conditions(step)["Prepared"][:2] == ("False", "Preparing")
    assert conditions(step)["Ready"][:2] == ("False", "Preparing")


def test_a_prepared_model_gets_its_workers():
    model, world = a_model(), World()
    world.do(model)
    world.publish(model)
    step = world.step(model)
    kinds = {one.kind.name for one in step.applies}
    assert {"Deployment", "Service", "PodDisruptionBudget", "ServiceAccount", "Role", "RoleBinding"} <= kinds
    assert not applied(step, JOB)
    assert step.status["catalog"]["digest"] == a_catalog().digest
    assert step.status["catalog"]["maxActiveRamps"] == 2
    assert step.status["catalog"]["configMap"] == f"resnet-catalog-{revision(model.spec)}"


def test_a_model_whose_workers_serve_is_ready_and_needs_nothing():
    model = a_model()
    world = serving(model)
    step = world.step(model)
    assert conditions(step)["Ready"][:2] == ("True", "Ready")
    assert conditions(step)["WorkersReady"] == ("True", "WorkersReady", "1 of 1 workers ready")
    assert not step.deletions
    assert step.status["readyReplicas"] == 1
    settled = a_model(status=step.status)
    again = world.step(settled, now=NOW + timedelta(hours=1))
    assert again.status == step.status
    assert not again.events


@pytest.mark.parametrize(
    "change",
    [
        {"budget": {"accuracyLoss": 0.05, "rampOverhead": 0.1}},
        {"adaptation": {"paused": True, "window": 1024}},
        {"serving": {"replicas": 4}},
        {"serving": {"slo": {"latencyMs": 20}}},
        {"serving": {"mode": "compact", "compact": {"fullShare": 0.2}}},
    ],
    ids=str,
)
def test_a_change_of_budget_adaptation_mode_or_replicas_restarts_nothing(change: dict[str, Any]):
    world = serving(a_model())
    before = applied(world.step(a_model()), DEPLOYMENT)[0]["spec"]["template"]
    step = world.step(a_model(generation=2, **change))
    assert applied(step, DEPLOYMENT)[0]["spec"]["template"] == before
    assert not applied(step, JOB)


@pytest.mark.parametrize(
    "change",
    [{"model": {"source": "pvc://models/other.safetensors"}}, {"bootstrap": {"data": "pvc://models/new.npz"}}],
    ids=["model", "data"],
)
def test_another_model_is_prepared_beside_the_running_one_and_then_takes_over(change: dict[str, Any]):
    old, new = a_model(), a_model(generation=2, **change)
    world = serving(old)
    running, wanted = revision(old.spec), revision(new.spec)
    step = world.do(new)
    assert f"--keep={running}" in applied(step, JOB)[0]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert applied(step, DEPLOYMENT)[0]["metadata"]["annotations"][REVISION] == running
    assert conditions(step)["Ready"][0] == "True"
    assert conditions(step)["Prepared"][:2] == ("False", "Preparing")
    world.publish(new, ramps=5)
    step = world.do(new)
    assert applied(step, DEPLOYMENT)[0]["metadata"]["annotations"][REVISION] == wanted
    assert len(step.status["catalog"]["ramps"]) == 5
    world.workers(new, ready=1)
    step = world.do(new)
    assert (CONFIG_MAP, f"resnet-catalog-{running}") in [*step.deletions, *world.step(new).deletions]


@pytest.mark.parametrize(
    "storage", [{"pvc": {"claimName": "larger"}}, {"s3": {"url": "s3://bucket/models"}}], ids=["claim", "bucket"]
)
def test_workers_keep_their_storage_until_the_model_is_prepared_in_another_one(storage: dict[str, Any]):
    old, new = a_model(), a_model(generation=2, storage=storage)
    world = serving(old)
    before = applied(world.step(old), DEPLOYMENT)[0]["spec"]["template"]
    step = world.do(new)
    assert applied(step, DEPLOYMENT)[0]["spec"]["template"] == before
    (job,) = applied(step, JOB)
    assert "resnet-prepared" not in str(job["spec"]["template"]["spec"]["volumes"])
    assert applied(world.do(new), DEPLOYMENT)[0]["spec"]["template"] == before  # nor at the next look
    world.publish(new)
    made = applied(world.do(new), DEPLOYMENT)[0]
    assert "resnet-prepared" not in str(made["spec"]["template"]["spec"])
    assert CLAIM not in {kind for kind, _ in world.step(new).deletions}


def test_a_failed_preparation_says_why_and_is_tried_again_later_and_later():
    model, world = a_model(), World()
    world.do(model)
    world.job_fails(model)
    told = '{"reason": "SourceNotFound", "message": "pvc://models/resnet.safetensors does not exist"}'
    ended = {"terminated": {"exitCode": 2, "reason": "Error", "message": told}}
    world.pod(model, "prepare-x", "prepare", containerStatuses=[{"name": "prepare", "state": ended}])
    step = world.step(model)
    assert conditions(step)["Prepared"][:2] == ("False", "SourceNotFound")
    assert "2026-11-30T12:00:30Z" in conditions(step)["Prepared"][2]
    assert step.again_s == 30
    assert not applied(step, JOB)
    step = world.do(model, now=NOW + timedelta(seconds=31))
    assert applied(step, JOB)[0]["metadata"]["name"].endswith("-2")
    assert [name for kind, name in step.deletions if kind is JOB] == [f"resnet-prepare-{revision(model.spec)}-1"]
    world.job_fails(model, at="2026-11-30T12:10:00Z")
    assert world.step(model, now=NOW + timedelta(minutes=10)).again_s == 60


def test_a_job_that_was_made_wrong_is_replaced_when_the_spec_is_mended():
    world = World()
    world.do(a_model(serving={"image": "wrnog:1"}))
    step = world.step(a_model(generation=2, serving={"image": "worker:2"}))
    assert applied(step, JOB)[0]["metadata"]["name"].endswith("-2")
    assert len([one for one in step.deletions if one[0] is JOB]) == 1


def test_a_running_job_is_left_alone_when_only_the_budget_changes():
    world = World()
    world.do(a_model())
    step = world.step(a_model(generation=2, budget={"accuracyLoss": 0.1}))
    assert not applied(step, JOB)
    assert not step.deletions


def test_progress_of_a_preparation_is_told():
    model, world = a_model(), World()
    world.do(model)
    world.pod(model, "prepare-x", "prepare", phase="Running")
    world.put(CONFIG_MAP, catalog_body(model, progress={"stage": "training", "share": 0.4}))
    assert "ramps are trained, 40%" in conditions(world.step(model))["Prepared"][2]


def test_a_catalog_that_is_none_is_said_so():
    model, world = a_model(), World()
    world.do(model)
    body = catalog_body(model)
    body["data"]["catalog.json"] = "{"
    world.put(CONFIG_MAP, body)
    assert conditions(world.step(model))["Prepared"][:2] == ("False", "CatalogInvalid")


@pytest.mark.parametrize("damage", ["{", '{"layers": 5}', "[" * 5000], ids=["cut", "wrong", "deep"])
def test_a_catalog_that_is_damaged_while_it_serves_stops_nothing(damage: str):
    model = a_model()
    world = serving(model)
    settled = a_model(status=world.step(model).status)
    body = catalog_body(model)
    body["data"]["catalog.json"] = damage
    world.put(CONFIG_MAP, body)
    step = world.step(settled)
    assert step.status["catalog"]["digest"] == a_catalog().digest
    assert applied(step, DEPLOYMENT)


def test_a_task_of_a_later_version_is_refused_in_words():
    step = World().step(
        a_model(model={"task": "generation"}, serving={"protocols": {"openai": {}}}),
    )
    assert not step.applies
    assert conditions(step)["Ready"][:2] == ("False", "TaskNotServed")


@pytest.mark.parametrize(
    ("pod", "reason", "says"),
    [
        (died(1, "boom"), "CrashLoopBackOff", "boom"),
        (died(137, reason="OOMKilled"), "OOMKilled", "memory"),
        (waits("ImagePullBackOff", 'Back-off pulling image "w:1"'), "ImagePullBackOff", "spec.serving.image"),
        (waits("InvalidImageName", "couldn't parse image"), "InvalidImageName", "spec.serving.image"),
        (waits("CreateContainerConfigError", 'secret "s3" not found'), "SecretNotFound", "s3"),
        (waits("CreateContainerConfigError", "couldn't find key url in Secret a/b"), "SecretLacksKey", "url"),
        ({"conditions": [UNSCHEDULABLE]}, "Unschedulable", "free nvidia.com/gpu"),
        (
            died(2, '{"event": "the worker cannot start", "error": "x.safetensors was changed"}'),
            "ModelLoadFailed",
            "x.",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on disk"}, "Evicted", "low on disk"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_model_is_not_ready_while_its_pods_are_not_and_says_their_own_reason(
    pod: dict[str, Any], reason: str, says: str
):
    model = a_model()
    world = serving(model)
    world.workers(model, ready=0)
    world.pod(model, "resnet-worker-1", **pod)
    found = conditions(world.step(model))
    assert found["WorkersReady"][:2] == ("False", reason)
    assert found["Ready"][:2] == ("False", reason)
    assert says in found["Ready"][2]


@pytest.mark.parametrize(
    ("message", "reason"),
    [("pods is forbidden: exceeded quota: gpu", "QuotaExceeded"), ('violates PodSecurity "restricted"', "PodRefused")],
)
def test_pods_that_cannot_be_made_at_all_are_told(message: str, reason: str):
    model = a_model()
    world = serving(model)
    failure = {"type": "ReplicaFailure", "status": "True", "message": message}
    world.workers(model, ready=0, conditions=[failure])
    assert conditions(world.step(model))["WorkersReady"][:2] == ("False", reason)


def test_workers_that_serve_while_no_new_ones_can_be_made_say_both():
    model = a_model()
    world = serving(model)
    failure = {"type": "ReplicaFailure", "status": "True", "message": 'pods "w-1" is forbidden: exceeded quota: gpu'}
    world.workers(model, ready=1, updatedReplicas=0, conditions=[failure])
    status, reason, message = conditions(world.step(model))["WorkersReady"]
    assert (status, reason) == ("True", "WorkersReady")
    assert "its pod is forbidden: exceeded quota: gpu" in message


def test_a_job_without_a_pod_is_looked_into_and_says_what_its_event_says():
    model, world = a_model(), World()
    world.do(model)
    world.put(JOB, world.newest(model, JOB) | {"status": {"startTime": "2026-11-30T11:59:55Z"}})
    assert world.step(model).again_s == 5.0
    observed = observe(world.store.of(model.metadata.uid))
    (job,) = observed.without_pods()
    for pod in ("x1", "y2"):  # another name at each try, and the same words
        said = f'Error creating: pods "resnet-prepare-{pod}" is forbidden: exceeded quota: gpu, used: pods=1'
        step = next_step(model, replace(observed, no_pods={job.name: said}), ENVIRONMENT, NOW)
        status, reason, message = conditions(step)["Prepared"]
        assert (status, reason) == ("False", "QuotaExceeded")
        assert message.startswith("Error creating: its pod is forbidden: exceeded quota: gpu, used: pods=1; raise")
        assert step.again_s == 30.0
    world.pod(model, "resnet-prepare-1", component="prepare", phase="Pending")
    assert observe(world.store.of(model.metadata.uid)).without_pods() == ()


def test_a_rollout_whose_new_workers_do_not_start_is_told_while_the_old_ones_serve():
    model = a_model()
    world = serving(model)
    world.workers(model, ready=1, replicas=2, updatedReplicas=1)
    world.pod(model, "old", conditions=[{"type": "Ready", "status": "True"}])
    world.pod(model, "evicted", phase="Failed", reason="Evicted", message="low on disk")
    assert conditions(world.step(model))["WorkersReady"][:2] == ("True", "WorkersReady")
    world.pod(model, "new", **waits("ImagePullBackOff", 'Back-off pulling image "w:2"'))
    step = world.step(model)
    assert conditions(step)["WorkersReady"][:2] == conditions(step)["Ready"][:2] == ("True", "RolloutBlocked")
    assert "1 of 1 workers ready; new workers do not start: new: " in conditions(step)["Ready"][2]
    assert "spec.serving.image" in conditions(step)["Ready"][2]
    assert [(one.kind, one.reason) for one in step.events if one.reason == "RolloutBlocked"] == [
        ("Warning", "RolloutBlocked")
    ]
    world.workers(model, ready=1)
    assert conditions(world.step(model))["Ready"][:2] == ("True", "Ready")


def test_a_secret_of_an_earlier_setting_goes_when_all_workers_have_rolled_over():
    model = a_model()
    world = serving(model)
    another = Environment("worker:1", redis_secret="own", tends_secrets=True)
    leftover = (SECRET, "resnet-redis")
    assert leftover not in world.do(model, another).deletions  # the rollout only begins
    world.workers(model, ready=1, replicas=2, updatedReplicas=1)
    assert leftover not in world.step(model, another).deletions
    world.workers(model, ready=1, replicas=1, updatedReplicas=1)
    assert leftover in world.step(model, another).deletions


@pytest.mark.parametrize(
    ("updated", "expected"),
    [(1, "RolloutBlocked"), (2, "Unschedulable")],
    ids=["in a rollout", "one worker more is no rollout"],
)
def test_a_worker_that_finds_no_gpu_names_it(updated, expected):
    model = a_model(serving={"gpu": {"count": 1}, "replicas": 2})
    world = serving(model)
    world.workers(model, ready=1, wanted=2, replicas=2, updatedReplicas=updated)
    world.pod(model, "first", conditions=[{"type": "Ready", "status": "True"}])
    world.pod(model, "second", conditions=[UNSCHEDULABLE])
    status, reason, message = conditions(world.step(model))["WorkersReady"]
    assert (status, reason) == ("False", expected)
    assert "nvidia.com/gpu" in message


def test_no_workers_wanted_is_a_state_of_its_own():
    model = a_model(serving={"replicas": 0})
    step = serving(model).step(model)
    assert conditions(step)["WorkersReady"][:2] == ("True", "ScaledToZero")
    assert conditions(step)["Ready"][:2] == ("False", "ScaledToZero")


SCALING = {"autoscaling": {"minReplicas": 2, "maxReplicas": 6}}


def test_with_an_autoscaler_the_operator_never_writes_the_number_of_workers():
    model = a_model(generation=2, **SCALING)
    world = serving(a_model(serving={"replicas": 3}))
    step = world.do(model)
    first, second = applied(step, DEPLOYMENT)
    assert step.applies[[one.body for one in step.applies].index(first)].manager == HANDOVER
    assert first["spec"] == {"replicas": 3}  # so that it does not fall to one before the autoscaler's first word
    assert "replicas" not in second["spec"]
    assert applied(step, AUTOSCALER)[0]["spec"]["minReplicas"] == 2
    assert len(applied(world.step(model), DEPLOYMENT)) == 1


def test_an_autoscaler_that_is_not_wanted_any_more_goes():
    world = serving(a_model())
    world.do(a_model(generation=2, **SCALING))
    step = world.step(a_model(generation=3))
    assert (AUTOSCALER, "resnet-worker") in step.deletions
    assert applied(step, DEPLOYMENT)[0]["spec"]["replicas"] == 1


def test_keda_is_used_where_it_is_and_missed_in_words_where_it_is_not():
    model = a_model(autoscaling={"kind": "keda", "minReplicas": 0, "maxReplicas": 3})
    assert applied(serving(model, KEDA).step(model, KEDA), SCALED_OBJECT)
    step = serving(model).step(model)
    assert not applied(step, SCALED_OBJECT)
    assert applied(step, DEPLOYMENT)[0]["spec"]["replicas"] == 1
    assert "install KEDA" in conditions(step)["WorkersReady"][2]


def test_what_was_deleted_by_somebody_is_made_again():
    model = a_model()
    world = serving(model)
    world.store.drop(DEPLOYMENT, world.newest(model, DEPLOYMENT))
    assert applied(world.step(model), DEPLOYMENT)


def test_the_time_of_a_condition_moves_only_with_its_status():
    model = a_model()
    world = serving(model)
    before = world.step(model).status
    world.workers(model, ready=0)
    later = world.step(a_model(status=before), now=NOW + timedelta(minutes=5)).status
    times = {c["type"]: c["lastTransitionTime"] for c in later["conditions"]}
    assert times["Prepared"] == "2026-11-30T12:00:00Z"
    assert times["Ready"] == "2026-11-30T12:05:00Z"


def test_news_is_told_once():
    model = a_model()
    step = World().step(model)
    assert [one.reason for one in step.events] == ["Preparing"]
    assert not World().step(a_model(status=step.status)).events


@pytest.mark.parametrize("model", [a_model(), a_model(**SCALING)], ids=["fixed", "scaled"])
def test_the_same_input_gives_the_same_step(model: EarlyExitModel):
    world = serving(model)
    assert world.step(model) == world.step(model, ENVIRONMENT)
