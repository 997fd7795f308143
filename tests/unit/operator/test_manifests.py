"""What is made for a model, field by field where a field once hurt somebody."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from apparate.contract.resource import EarlyExitModel
from apparate.contract.revision import revision
from apparate_operator.kinds import DEPLOYMENT, JOB, POD_MONITOR, SECRET, Json
from apparate_operator.manifests.access import prepare_access, worker_access
from apparate_operator.manifests.common import Environment
from apparate_operator.manifests.prepare import prepare_job
from apparate_operator.manifests.storage import claim
from apparate_operator.manifests.traffic import autoscaler, disruption_budget, pod_monitor, service
from apparate_operator.manifests.worker import deployment, strategy
from apparate_operator.start import rights
from support.models_on_kubernetes import ENVIRONMENT, World, a_model, serving

GPU = {"gpu": {"count": 1}}
OPENSHIFT = Environment("worker:1", apis=frozenset({"security.openshift.io"}))
LONGEST = "a" * 40


def worker(model: EarlyExitModel, environment: Environment = ENVIRONMENT) -> Json:
    made = deployment(model, environment, revision="abcd1234", replicas=model.spec.serving.replicas)
    return dict(made["spec"]["template"]["spec"])


def job(model: EarlyExitModel, environment: Environment = ENVIRONMENT) -> Json:
    made = prepare_job(model, environment, revision="abcd1234", attempt=1)
    return dict(made["spec"]["template"]["spec"])


def container(pod: Json) -> Json:
    return dict(pod["containers"][0])


@pytest.mark.parametrize(
    ("gpu", "limits"),
    [
        ({"count": 2}, {"nvidia.com/gpu": "2"}),
        ({"count": 1, "migProfile": "1g.10gb"}, {"nvidia.com/mig-1g.10gb": "1"}),
        ({"count": 1, "resourceName": "nvidia.com/gpu"}, {"nvidia.com/gpu": "1"}),  # MIG with the strategy single
        ({"count": 1, "resourceName": "amd.com/gpu"}, {"amd.com/gpu": "1"}),
    ],
)
def test_gpus_are_asked_for_by_the_name_that_the_device_plugin_has(gpu: dict[str, Any], limits: dict[str, str]):
    pod = worker(a_model(serving={"gpu": gpu}))
    assert container(pod)["resources"]["limits"] == limits
    assert "CUDA_VISIBLE_DEVICES" not in json.dumps(pod)


@pytest.mark.parametrize(
    ("serving", "expected"),
    [
        ({}, {"maxSurge": 1, "maxUnavailable": 0}),
        (GPU, {"maxSurge": 0, "maxUnavailable": 1}),
        ({**GPU, "rollout": {"strategy": "surge"}}, {"maxSurge": 1, "maxUnavailable": 0}),
    ],
)
def test_a_scarce_gpu_is_freed_before_a_new_worker_needs_it(serving: dict[str, Any], expected: dict[str, int]):
    assert strategy(a_model(serving=serving)) == {"type": "RollingUpdate", "rollingUpdate": expected}


def test_recreate_is_done_as_asked():
    assert strategy(a_model(serving={"rollout": {"strategy": "recreate"}})) == {"type": "Recreate"}


@pytest.mark.parametrize("pod", [worker(a_model()), job(a_model())], ids=["worker", "job"])
def test_pods_have_no_rights_that_the_restricted_standard_forbids(pod: Json):
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(pod)["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["enableServiceLinks"] is False


@pytest.mark.parametrize("make", [worker, job])
def test_on_openshift_the_cluster_chooses_users_and_groups(make: Any):
    assert not {"runAsUser", "fsGroup", "fsGroupChangePolicy"} & make(a_model(), OPENSHIFT)["securityContext"].keys()
    assert "fsGroup" in make(a_model())["securityContext"]


def test_probes_mean_different_things_and_the_start_has_the_asked_time():
    found = container(worker(a_model(serving={"loadTimeoutSeconds": 900})))
    paths = {name: found[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths["livenessProbe"] == "/v2/health/live"
    assert paths["readinessProbe"] == paths["startupProbe"] == "/v2/health/ready"
    assert found["startupProbe"]["periodSeconds"] * found["startupProbe"]["failureThreshold"] == 900


def test_a_worker_has_time_to_drain_after_load_balancers_have_heard():
    pod = worker(a_model(serving={"drainSeconds": 60}))
    pause = container(pod)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= pause + 60


def test_workers_go_to_different_nodes_where_they_can():
    pod = worker(a_model())
    (spread,) = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    chosen = disruption_budget(a_model())["spec"]
    assert spread["labelSelector"] == chosen["selector"]
    assert chosen["maxUnavailable"] == 1


def test_a_worker_may_only_read_its_own_model():
    role = worker_access(a_model())[1]
    assert role["rules"] == [
        {
            "apiGroups": ["apparate.dev"],
            "resources": ["earlyexitmodels"],
            "resourceNames": ["resnet"],
            "verbs": ["get", "list", "watch"],
        }
    ]


def test_a_preparation_may_only_write_its_own_catalog():
    rules = prepare_access(a_model(), "resnet-catalog-abcd1234")[1]["rules"]
    assert rules[0]["verbs"] == ["get"]
    assert rules[1]["resourceNames"] == ["resnet-catalog-abcd1234"]


@pytest.mark.parametrize(
    ("source", "volume", "mount"),
    [
        ("pvc://weights/a/b.pt", {"persistentVolumeClaim": {"claimName": "weights", "readOnly": True}}, "pvc/weights"),
        ("oci://ghcr.io/a/b:1", {"image": {"reference": "ghcr.io/a/b:1"}}, "oci/model"),
        ("s3://bucket/a.pt", None, None),
        ("hf://owner/name@main", None, None),
        ("file:///opt/model.pt", None, None),
    ],
)
def test_the_job_gets_the_model_the_way_its_source_asks(source: str, volume: Json | None, mount: str | None):
    pod = job(a_model(model={"source": source}, bootstrap={"data": "file:///opt/data.npz"}))
    found = [one for one in pod["volumes"] if one["name"] == "model-source"]
    assert found == ([{"name": "model-source", **volume}] if volume else [])
    mounts = [one for one in container(pod)["volumeMounts"] if one["name"] == "model-source"]
    assert [(one["mountPath"], one["readOnly"]) for one in mounts] == ([(f"/sources/{mount}", True)] if mount else [])


def test_workers_read_what_was_prepared_and_cannot_write_it():
    pod = worker(a_model())
    mounts = [one for one in container(pod)["volumeMounts"] if one["mountPath"] == "/prepared"]
    assert mounts == [{"name": "prepared", "mountPath": "/prepared", "readOnly": True}]
    env = {one["name"]: one.get("value") for one in container(pod)["env"]}
    assert env["EEM_WORKER_PREPARED"] == "/prepared/abcd1234/shop/resnet"
    assert env["EEM_WORKER_OBJECT"] == "shop/resnet"


def test_secrets_of_sources_reach_the_job_under_names_of_their_own():
    model = a_model(
        model={"source": "s3://a/b", "credentials": {"secretName": "one"}},
        bootstrap={"data": "s3://c/d", "credentials": {"secretName": "two"}},
        storage={"s3": {"url": "s3://e/f", "credentials": {"secretName": "three"}}},
    )
    found = {one["prefix"]: one["secretRef"]["name"] for one in container(job(model))["envFrom"]}
    assert found == {"MODEL_": "one", "DATA_": "two", "STORE_": "three"}


def test_with_s3_workers_fetch_the_prepared_model_first():
    model = a_model(storage={"s3": {"url": "s3://bucket/models", "credentials": {"secretName": "s3"}}})
    pod = worker(model)
    assert pod["initContainers"][0]["command"][-2:] == [
        "s3://bucket/models/abcd1234/shop/resnet",
        "/prepared/abcd1234/shop/resnet",
    ]
    assert claim(model) is None


def test_a_claim_is_made_unless_one_is_named():
    made = claim(a_model(storage={"pvc": {"size": "50Gi", "accessModes": ["ReadWriteMany"]}}))
    assert made is not None
    assert made["spec"] == {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "50Gi"}}}
    assert claim(a_model(storage={"pvc": {"claimName": "shared"}})) is None


def test_the_user_template_is_added_and_the_operators_labels_win():
    template = {
        "labels": {"team": "vision", "apparate.dev/model": "other"},
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "env": [{"name": "HOME", "value": "/data"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "securityContext": {"pod": {"runAsUser": 1234}},
        "runtimeClassName": "nvidia",
    }
    made = deployment(a_model(serving={"template": template}), ENVIRONMENT, revision="r", replicas=1)
    meta, pod = made["spec"]["template"]["metadata"], made["spec"]["template"]["spec"]
    assert meta["labels"]["team"] == "vision"
    assert meta["labels"]["apparate.dev/model"] == "resnet"
    assert pod["nodeSelector"] == {"gpu": "h100"}
    assert pod["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert pod["securityContext"]["runAsUser"] == 1234
    assert [one["value"] for one in container(pod)["env"] if one["name"] == "HOME"] == ["/data"]
    assert {"name": "data", "emptyDir": {}} in pod["volumes"]


BUNDLED = Environment("w", redis_url="redis://:hunter2@redis:6379/0")


def test_the_password_of_redis_is_in_a_secret_and_nowhere_else():
    model, world = a_model(), World()
    world.do(model, BUNDLED)
    world.publish(model)
    bodies = {one.kind: one.body for one in world.do(model, BUNDLED).applies}
    made = bodies.pop(SECRET)
    assert made["metadata"]["name"] == "resnet-redis"
    assert base64.b64decode(made["data"]["url"]).decode() == BUNDLED.redis_url
    assert "hunter2" not in json.dumps(list(bodies.values()))
    assert "redis" not in json.dumps(job(model, BUNDLED))


def test_workers_refer_to_the_secret_which_is_written_before_them():
    model, world = a_model(), World()
    world.do(model, BUNDLED)
    world.publish(model)
    kinds = [one.kind for one in world.do(model, BUNDLED).applies]
    assert kinds.index(SECRET) < kinds.index(DEPLOYMENT)
    reference = {"secretKeyRef": {"name": "resnet-redis", "key": "url"}}
    assert {"name": "EEM_WORKER_REDIS_URL", "valueFrom": reference} in container(worker(model, BUNDLED))["env"]


def test_another_url_of_redis_rolls_the_workers():
    def template(url: str) -> Json:
        made = deployment(a_model(), Environment("w", redis_url=url), revision="r", replicas=1)
        return dict(made["spec"]["template"])

    assert template("redis://:a@r:6379/0") == template("redis://:a@r:6379/0")
    assert template("redis://:a@r:6379/0") != template("redis://:b@r:6379/0")


@pytest.mark.parametrize(
    "environment",
    [
        Environment("w"),
        Environment("w", redis_url="redis://r", redis_secret="s"),
        Environment("w", redis_secret="s", tends_secrets=True),
    ],
)
def test_the_operator_makes_no_secrets_and_needs_no_right_to_where_it_hands_on_no_url(environment: Environment):
    world = serving(a_model(), environment)
    assert SECRET not in {one.kind for one in world.do(a_model(), environment).applies}
    assert SECRET not in {kind for kinds in rights(environment).values() for kind in kinds}
    assert SECRET in {kind for kinds in rights(BUNDLED).values() for kind in kinds}


def test_redis_comes_from_a_secret_when_there_is_one():
    env = container(worker(a_model(), Environment("w", redis_secret="redis")))["env"]
    assert {"name": "EEM_WORKER_REDIS_URL", "valueFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}} in env


def test_the_service_has_http_and_grpc_at_the_asked_ports():
    ports = service(a_model(serving={"protocols": {"http": {"port": 80}}}))["spec"]["ports"]
    assert [(one["name"], one["port"], one["targetPort"]) for one in ports] == [
        ("http", 80, "http"),
        ("grpc", 9000, "grpc"),
    ]


@pytest.mark.parametrize(
    ("target", "metric"),
    [
        ({"metric": "cpu", "value": 0.7}, {"averageUtilization": 70, "type": "Utilization"}),
        ({"metric": "waiting", "value": 4}, {"averageValue": "4", "type": "AverageValue"}),
        ({"metric": "inFlight", "value": 2.5}, {"averageValue": "2500m", "type": "AverageValue"}),
    ],
)
def test_targets_of_an_autoscaler(target: Json, metric: Json):
    scaling = {"minReplicas": 1, "maxReplicas": 4, "targets": [target]}
    model = a_model(autoscaling=scaling)
    assert model.spec.autoscaling is not None
    (made,) = autoscaler(model, model.spec.autoscaling)["spec"]["metrics"]
    assert (made.get("resource") or made["pods"])["target"] == metric


def test_names_of_everything_fit_into_63_characters():
    model = a_model(name=LONGEST, **{"autoscaling": {"maxReplicas": 2}})
    world = World()
    steps = [world.do(model)]
    world.publish(model)
    steps.append(world.do(model))
    names = [one.name for step in steps for one in step.applies]
    names += [prepare_job(model, ENVIRONMENT, revision="a" * 8, attempt=9999)["metadata"]["name"]]
    assert max(map(len, names)) <= 63


def test_everything_belongs_to_the_model_and_dies_with_it():
    model, world = a_model(), World()
    step = world.do(model)
    world.publish(model)
    for one in [*step.applies, *world.do(model).applies]:
        assert [owner["uid"] for owner in one.body["metadata"]["ownerReferences"]] == [model.metadata.uid]
        assert "finalizers" not in one.body["metadata"]


@pytest.mark.parametrize(
    ("change", "anew"),
    [
        ({"model": {"sha256": "0" * 64}}, True),
        ({"bootstrap": {"epochs": 5}}, True),
        ({"serving": {"maxBatch": 16}}, True),
        ({"serving": {"replicas": 3}}, False),
        ({"serving": {"maxQueue": 10}}, False),
        ({"budget": {"rampOverhead": 0.1}}, False),
        ({"model": {"credentials": {"secretName": "new"}}}, False),
        ({"prepare": {"backoffLimit": 5}}, False),
        ({"storage": {"pvc": {"claimName": "larger"}}}, True),
        ({"storage": {"s3": {"url": "s3://bucket/models"}}}, True),
        ({"storage": {"pvc": {"size": "20Gi"}}}, False),
    ],
    ids=str,
)
def test_a_revision_names_what_a_preparation_depends_on(change: Json, anew: bool):
    assert (revision(a_model(**change).spec) != revision(a_model().spec)) is anew


def test_the_job_gives_up_at_once_on_what_trying_again_cannot_mend():
    made = prepare_job(a_model(), ENVIRONMENT, revision="r", attempt=1)
    rule = made["spec"]["podFailurePolicy"]["rules"][0]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2])
    assert made["kind"] == JOB.name


MONITORED = replace(
    ENVIRONMENT,
    apis=frozenset({"monitoring.coreos.com"}),
    monitor_labels=(("release", "kps"), ("team", "ml")),
    scrape_interval="30s",
)


def test_workers_are_scraped_by_the_prometheus_that_selects_by_these_labels():
    made = pod_monitor(a_model(), MONITORED)
    assert {"release": "kps", "team": "ml"}.items() <= made["metadata"]["labels"].items()
    assert made["spec"]["podMetricsEndpoints"] == [
        {"port": "http", "path": "/metrics", "interval": "30s", "honorLabels": True}
    ]


def test_a_label_of_ours_cannot_be_taken_by_one_that_prometheus_selects_by():
    made = pod_monitor(a_model(), replace(MONITORED, monitor_labels=(("apparate.dev/model", "other"),)))
    assert made["metadata"]["labels"]["apparate.dev/model"] == "resnet"


def test_monitors_that_are_switched_off_go_away():
    model = a_model()
    world = serving(model, MONITORED)
    assert POD_MONITOR in {one.kind for one in world.do(model, MONITORED).applies}
    step = world.step(model, replace(MONITORED, scrape_interval=""))
    assert (POD_MONITOR, "resnet-worker") in step.deletions
