"""From an EarlyExitModel to what runs, by the operator as a process against a real API."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apparate.contract.conditions import CONTROLLER
from apparate.contract.metrics import OPERATOR
from apparate.service.kube import apply_status, from_kubeconfig
from apparate_operator.kinds import APPLIED
from support import kube
from support.eventually import eventually
from support.models_on_kubernetes import a_body
from support.operator import Hand, RunningOperator, an_operator_for_all
from support.promql import SUFFIXES

pytestmark = [pytest.mark.cluster]


@pytest.fixture(scope="module", autouse=True)
def operator(control_plane: kube.Cluster) -> Iterator[RunningOperator]:
    """One for all tests here, each of which has a namespace of its own."""
    with an_operator_for_all(control_plane, "lifecycle") as running:
        yield running


def resynced(operator: RunningOperator) -> None:
    """Wait until everything was listed and looked at once more."""
    name = "apparate_operator_last_resync_timestamp_seconds"
    last = operator.metric(name)
    eventually(lambda: operator.metric(name) > last + 2, within=20)
    eventually(lambda: operator.metric("apparate_operator_waiting_models ") == 0, within=10)


def test_a_model_is_prepared_then_served_then_left_alone(hand: Hand, operator: RunningOperator):
    hand.create(a_body())
    eventually(lambda: hand.jobs(), within=20)
    assert hand.deployment() is None
    hand.is_reason("Ready", "Preparing")
    hand.prepare()
    eventually(lambda: hand.deployment(), within=20)
    hand.start_workers()
    hand.is_reason("Ready", "Ready")
    status = hand.get()["status"]
    assert (status["replicas"], status["readyReplicas"], status["observedGeneration"]) == (1, 1, 1)
    assert len(status["catalog"]["ramps"]) == 3
    version = hand.get()["metadata"]["resourceVersion"]
    resynced(operator)
    assert hand.get()["metadata"]["resourceVersion"] == version
    assert "inconsistencies" not in operator.log


def test_what_is_written_into_the_status_is_what_is_read_back_and_annotations_stay_small(
    hand: Hand, operator: RunningOperator
):
    classes = [f"class-{n:06d}-" + "x" * 200 for n in range(800)]
    hand.serve(a_body(model={"classes": classes}))
    found = hand.get()
    assert len(json.dumps(found["spec"])) > 150_000
    assert sum(map(len, found["metadata"].get("annotations", {}).values())) < 4096
    assert {c["type"] for c in found["status"]["conditions"]} == {"Prepared", "WorkersReady", "Ready"}
    assert not found["metadata"].get("finalizers")


def test_a_model_is_not_ready_while_its_pods_crash_and_recovers(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    (pod,) = hand.pods("worker")
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    crashed = {"name": "worker", "ready": False, "restartCount": 2, "image": "w", "imageID": "w", "state": state}
    conditions = [{"type": "Ready", "status": "False"}]
    hand.pod_status(pod, conditions=conditions, containerStatuses=[crashed | {"lastState": ended}])
    message = hand.is_reason("Ready", "OOMKilled", within=10)
    assert "0 of 1 workers ready" in message
    hand.start_workers()
    hand.is_reason("Ready", "Ready")


def test_changes_of_budget_and_adaptation_never_restart_a_worker(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    generation, (pod,) = hand.deployment().metadata.generation, hand.pods("worker")
    for n in range(20):
        hand.patch("resnet", budget={"accuracyLoss": 0.01 + n / 1000}, adaptation={"window": 512 + n})
    wanted = hand.get()["metadata"]["generation"]
    eventually(lambda: hand.get()["status"]["observedGeneration"] == wanted, within=20)
    assert hand.deployment().metadata.generation == generation
    assert [one.metadata.uid for one in hand.pods("worker")] == [pod.metadata.uid]


def test_another_model_is_prepared_beside_the_running_one(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    before = hand.deployment().metadata.annotations["apparate.dev/revision"]
    hand.patch("resnet", model={"source": "pvc://models/other.safetensors"})
    eventually(lambda: any(before not in job.metadata.name for job in hand.jobs()), within=20)
    assert hand.deployment().metadata.annotations["apparate.dev/revision"] == before
    assert hand.condition("Ready")[0] == "True"
    hand.prepare(ramps=5)
    eventually(lambda: hand.deployment().metadata.annotations["apparate.dev/revision"] != before, within=20)
    eventually(lambda: len(hand.get()["status"]["catalog"]["ramps"]) == 5, within=10)


def test_the_number_of_workers_is_scaled_by_the_model_or_left_to_the_autoscaler(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    scale = ("scale", "-n", hand.namespace, "--replicas=2", "earlyexitmodel/resnet")
    hand.cluster.kubectl(*scale)
    eventually(lambda: hand.deployment().spec.replicas == 2, within=20)
    hand.patch("resnet", autoscaling={"minReplicas": 1, "maxReplicas": 9})
    eventually(lambda: "hpa" in str(hand.leftovers()) or "horizontalpodautoscaler" in str(hand.leftovers()), within=20)
    assert hand.deployment().spec.replicas == 2
    hand.cluster.kubectl("scale", "-n", hand.namespace, "--replicas=5", "deployment/resnet-worker")
    hand.patch("resnet", serving={"maxQueue": 99})
    wanted = hand.get()["metadata"]["generation"]
    eventually(lambda: hand.get()["status"]["observedGeneration"] == wanted, within=20)
    assert hand.deployment().spec.replicas == 5


def test_what_somebody_deletes_or_changes_is_mended(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    hand.apps.delete_namespaced_deployment("resnet-worker", hand.namespace)
    hand.core.delete_namespaced_service("resnet", hand.namespace)
    eventually(lambda: hand.deployment(), within=20)
    eventually(lambda: any(one.startswith("service/") for one in hand.leftovers()), within=20)
    hand.cluster.kubectl("scale", "-n", hand.namespace, "--replicas=4", "deployment/resnet-worker")
    eventually(lambda: hand.deployment().spec.replicas == 1, within=20)


def test_a_status_that_somebody_edited_is_put_right(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    before = hand.get()["status"]
    place = (*hand._place(), "resnet")
    for edit in ({"readyReplicas": 7}, {"observedGeneration": 99}, {"catalog": None}, {"conditions": []}):
        hand.models.patch_namespaced_custom_object_status(*place, {"status": edit})
        eventually(lambda: plainly(hand.get()["status"]) == plainly(before), within=20)
    hand.models.replace_namespaced_custom_object_status(*place, hand.get() | {"status": {}})
    eventually(lambda: plainly(hand.get().get("status", {})) == plainly(before), within=20)


def plainly(status: dict[str, Any]) -> dict[str, Any]:
    """A status without the times of its conditions."""
    conditions = [{**one, "lastTransitionTime": ""} for one in status.get("conditions", ())]
    return status | {"conditions": conditions}


def test_two_models_of_one_name_do_not_touch_each_other(hand: Hand, operator: RunningOperator):
    with hand.cluster.namespace() as another:
        other = Hand(hand.cluster, another)
        hand.serve(a_body())
        other.serve(a_body(model={"source": "pvc://models/other.safetensors"}))
        revisions = {one.deployment().metadata.annotations["apparate.dev/revision"] for one in (hand, other)}
        assert len(revisions) == 2
        before = hand.leftovers()
        other.delete()
        eventually(lambda: f'namespace="{another}"' not in operator.metrics(), within=20)
        resynced(operator)
        assert hand.leftovers() == before
        assert hand.condition("Ready")[0] == "True"
        assert f'model="resnet",namespace="{hand.namespace}"' in operator.metrics()


def test_an_object_of_somebody_else_is_never_taken_over(hand: Hand, operator: RunningOperator):
    ports = [{"port": 1234}]
    hand.core.create_namespaced_service(hand.namespace, {"metadata": {"name": "resnet"}, "spec": {"ports": ports}})
    hand.create(a_body())
    hand.prepare()
    message = hand.is_reason("Ready", "ReconcileFailed")
    assert "Service resnet exists and does not belong to this model" in message
    assert hand.core.read_namespaced_service("resnet", hand.namespace).spec.ports[0].port == 1234


def test_what_the_api_refuses_is_said_and_mended_by_a_better_spec(hand: Hand, operator: RunningOperator):
    hand.create(a_body(serving={"template": {"affinity": {"nodeAffinty": {}}}}))
    message = hand.is_reason("Ready", "SpecRejected")
    assert "nodeAffinty" in message
    hand.patch("resnet", serving={"template": {"affinity": None}})
    hand.is_reason("Ready", "Preparing")


def test_the_jobs_own_reason_is_told_and_it_is_tried_again_when_the_spec_is_mended(
    hand: Hand, operator: RunningOperator
):
    hand.create(a_body())
    (pod,) = eventually(lambda: hand.pods("prepare"), within=20)
    told = json.dumps({"reason": "SourceNotFound", "message": "pvc://models/resnet.safetensors does not exist"})
    ended = {"exitCode": 2, "reason": "Error", "message": told}
    status = {"name": "prepare", "ready": False, "restartCount": 0, "image": "w", "imageID": "w"}
    hand.pod_status(pod, phase="Failed", containerStatuses=[status | {"state": {"terminated": ended}}])
    hand.is_reason("Ready", "SourceNotFound")
    eventually(lambda: "tried again" in hand.condition("Ready")[2], within=20)
    hand.patch("resnet", model={"source": "pvc://models/right.safetensors"})
    hand.is_reason("Ready", "Preparing")


def test_unschedulable_gpus_and_missing_secrets_are_told_with_the_next_step(hand: Hand, operator: RunningOperator):
    hand.create(a_body(prepare={"gpu": {"count": 1}}))
    (pod,) = eventually(lambda: hand.pods("prepare"), within=20)
    said = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    lacking = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    hand.pod_status(pod, conditions=[lacking])
    assert "free nvidia.com/gpu" in hand.is_reason("Ready", "Unschedulable")
    waits = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s3" not found'}}
    status = {"name": "prepare", "ready": False, "restartCount": 0, "image": "w", "imageID": "w", "state": waits}
    hand.pod_status(pod, conditions=[{**lacking, "status": "True"}], containerStatuses=[status])
    assert "s3" in hand.is_reason("Ready", "SecretNotFound")


def test_the_strategy_and_the_limits_of_scarce_gpus_are_what_kubernetes_takes(hand: Hand, operator: RunningOperator):
    hand.create(a_body(serving={"gpu": {"count": 1, "migProfile": "1g.10gb"}}))
    hand.prepare()
    made = eventually(lambda: hand.deployment(), within=20)
    assert (made.spec.strategy.rolling_update.max_surge, made.spec.strategy.rolling_update.max_unavailable) == (0, 1)
    (container,) = made.spec.template.spec.containers
    assert container.resources.limits == {"nvidia.com/mig-1g.10gb": "1"}


def test_a_foreground_deletion_takes_everything_along(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    said = len(operator.process.err)
    hand.cluster.kubectl("delete", "eem", "resnet", "-n", hand.namespace, "--cascade=foreground", "--timeout=60s")
    eventually(lambda: hand.leftovers() == [], within=40)
    assert operator.refusals(422, since=said) == []


def test_orphans_are_kept_when_that_is_asked_for(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    said = len(operator.process.err)
    hand.cluster.kubectl("delete", "eem", "resnet", "-n", hand.namespace, "--cascade=orphan", "--timeout=60s")
    resynced(operator)
    assert hand.deployment() is not None
    assert operator.refusals(422, since=said) == []


def test_pods_are_admitted_where_the_restricted_standard_is_enforced(control_plane: kube.Cluster):
    with control_plane.namespace({"pod-security.kubernetes.io/enforce": "restricted"}) as namespace:
        hand = Hand(control_plane, namespace)
        hand.create(a_body(model={"source": "oci://ghcr.io/models/resnet:1"}, storage={"s3": {"url": "s3://a/b"}}))
        eventually(lambda: hand.pods("prepare"), within=30)
        hand.prepare()
        eventually(lambda: hand.pods("worker"), within=30)


def test_every_object_says_which_manifest_it_was_made_from(hand: Hand, operator: RunningOperator):
    hand.create(a_body())
    eventually(lambda: hand.jobs(), within=20)
    assert hand.jobs()[0].metadata.annotations[APPLIED]


def test_two_writers_of_one_status_lose_nothing_of_each_other(hand: Hand, operator: RunningOperator):
    failed = 'apparate_operator_reconciles_total{result="api"}'
    hand.serve(a_body())
    before = operator.metric(failed)
    with contextlib.closing(from_kubeconfig(str(hand.cluster.kubeconfig))[0]) as client:
        for n in range(1, 41):
            hand.patch("resnet", serving={"maxQueue": 100 + n})
            plan = {"revision": n, "ramps": [{"ramp": 0, "threshold": 0.5}]}
            body = {
                "apiVersion": "apparate.dev/v1alpha1",
                "kind": "EarlyExitModel",
                "metadata": {"name": "resnet", "namespace": hand.namespace},
                "status": {"plan": plan},
            }
            apply_status(client, hand.namespace, "resnet", body, CONTROLLER)
    wanted = hand.get()["metadata"]["generation"]
    eventually(lambda: hand.get()["status"]["observedGeneration"] == wanted, within=20)
    assert hand.get()["status"]["plan"]["revision"] == 40
    assert operator.metric(failed) == before


def test_many_models_at_once_are_all_looked_after_in_little_memory(hand: Hand, operator: RunningOperator):
    bodies = [a_body(f"model{n}") for n in range(40)]
    for body in bodies:
        body["metadata"]["namespace"] = hand.namespace
    hand.cluster.apply(*bodies)
    eventually(lambda: len(hand.batch.list_namespaced_job(hand.namespace).items) == 40, within=60)
    eventually(lambda: operator.metric("apparate_operator_waiting_models ") == 0, within=20)
    text = Path(f"/proc/{operator.process.pid}/status").read_text()
    assert int(text.partition("VmRSS:")[2].split()[0]) < 250 * 1024


def test_every_declared_metric_is_shown_and_a_deleted_model_leaves_none(hand: Hand, operator: RunningOperator):
    hand.serve(a_body())
    resynced(operator)
    text = operator.metrics()
    names = {re.split(r"[ {]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    silent = {m.name for m in OPERATOR if not any(m.name + suffix in names for suffix in SUFFIXES[m.kind])}
    assert silent <= {"apparate_operator_missed_changes"}  # a watch would have to miss something
    of = f'model="resnet",namespace="{hand.namespace}"'
    for told in (
        f'apparate_model_condition{{{of},reason="Ready",type="Ready"}} 1.0',
        f"apparate_model_ready_replicas{{{of}}} 1.0",
    ):
        assert told in text
    hand.delete()
    eventually(lambda: f'namespace="{hand.namespace}"' not in operator.metrics(), within=20)
