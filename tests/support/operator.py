"""The operator as a real process against a real API, and a hand that plays the kubelet."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kubernetes import client

from apparate.contract.resource import EarlyExitModel
from apparate.contract.schema import crd
from apparate.service.lease import DURATION_S
from support import kube
from support.eventually import eventually
from support.models_on_kubernetes import a_catalog, catalog_body
from support.processes import Process, a_process

TAKES_OVER_WITHIN_S = DURATION_S + 15
TIME = re.compile(r"\d{4}-\d{2}-\d{2}T[\d:.]+Z")
Json = dict[str, Any]


class RunningOperator:
    """One replica as a child process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        eventually(lambda: process.out or process.popen.poll() is not None, within=30)
        assert process.out, process.err[-5:]
        self._port = int(json.loads(process.out[0])["health"])

    def health(self) -> tuple[int, list[str]]:
        """HTTP status and problems of /healthz."""
        return self._asked("healthz")

    def _asked(self, page: str) -> tuple[int, list[str]]:
        try:
            with urllib.request.urlopen(f"{self.url}/{page}", timeout=5) as answer:
                return answer.status, json.load(answer)["problems"]
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)["problems"]

    def readiness(self) -> tuple[int, list[str]]:
        """HTTP status and problems of /readyz."""
        return self._asked("readyz")

    def metric(self, line: str) -> float:
        """The value of the metric whose line begins so; 0 without one. Several are added up."""
        return sum(float(one.rpartition(" ")[2]) for one in self.metrics().splitlines() if one.startswith(line))

    def metrics(self) -> str:
        """The page of /metrics."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            return str(answer.read().decode())

    @property
    def url(self) -> str:
        """Where its pages are."""
        return f"http://127.0.0.1:{self._port}"

    def writes(self) -> float:
        """How many writes it has sent."""
        return self.metric("apparate_operator_writes_total")

    def settle(self) -> None:
        """Wait until it leads and has nothing to do."""
        eventually(lambda: self.health()[0] == 200 and self.metric("apparate_operator_leading ") == 1, within=40)

    @property
    def log(self) -> str:
        return "\n".join(self.process.err)

    def refusals(self, status: int, since: int) -> list[str]:
        """Lines of the log, from line `since` on, that name this HTTP status: as a word, outside the line's time."""
        lines = [TIME.sub("", line) for line in self.process.err[since:]]
        return [line for line in lines if re.search(rf"(?<![\w.:-]){status}(?![\w.:-])", line)]


@contextlib.contextmanager
def an_operator(
    cluster: kube.Cluster, namespace: str, *, kubeconfig: Path | None = None, **settings: str
) -> Iterator[RunningOperator]:
    """A replica that looks after one namespace, gone when the block ends. `settings` are EEM_OPERATOR_ variables."""
    given = {
        "kubeconfig": str(kubeconfig or cluster.kubeconfig),
        "namespaces": namespace,
        "worker_image": "apparate-worker:test",
        "redis_url": "redis://redis:6379/0",
        "lease_namespace": namespace,
        "host": "127.0.0.1",
        "health_port": "0",
        "watch_seconds": "5",
        **settings,
    }
    environ = {f"EEM_OPERATOR_{name.upper()}": value for name, value in given.items()}
    with a_process([sys.executable, "-m", "apparate_operator"], environ) as process:
        yield RunningOperator(process)


@contextlib.contextmanager
def an_operator_for_all(cluster: kube.Cluster, name: str) -> Iterator[RunningOperator]:
    """A replica that several tests share: it looks after all namespaces, and each test has one of its own."""
    cluster.install_crd(crd())
    own = {"namespaces": "", "lease_namespace": "default", "lease_name": name, "resync_seconds": "1"}
    with an_operator(cluster, "", **own) as running:
        running.settle()
        yield running


class Hand:
    """What kubelets and preparations do, done by hand; and reading back."""

    def __init__(self, cluster: kube.Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        api = cluster.api_client()
        self.core, self.apps, self.batch = client.CoreV1Api(api), client.AppsV1Api(api), client.BatchV1Api(api)
        self.models = client.CustomObjectsApi(api)

    def create(self, body: Json) -> None:
        body = body | {"metadata": body["metadata"] | {"namespace": self.namespace}}
        self.models.create_namespaced_custom_object(*self._place(), body)

    def patch(self, name: str, **spec: Any) -> None:
        """Merge into the spec."""
        self.models.patch_namespaced_custom_object(*self._place(), name, {"spec": spec})

    def get(self, name: str = "resnet") -> Json:
        found: Json = self.models.get_namespaced_custom_object(*self._place(), name)
        return found

    def delete(self, name: str = "resnet") -> None:
        self.models.delete_namespaced_custom_object(*self._place(), name)

    def _place(self) -> tuple[str, str, str, str]:
        return "apparate.dev", "v1alpha1", self.namespace, "earlyexitmodels"

    def condition(self, kind: str, name: str = "resnet") -> tuple[str, str, str]:
        """(status, reason, message) of a condition; empty strings without it."""
        for one in self.get(name).get("status", {}).get("conditions", ()):
            if one["type"] == kind:
                return one["status"], one["reason"], one.get("message", "")
        return "", "", ""

    def is_reason(self, kind: str, reason: str, name: str = "resnet", within: float = 20) -> str:
        """Wait for the reason of a condition; its message."""

        def check() -> str:
            found = self.condition(kind, name)
            assert found[1] == reason, found
            return found[2] or " "

        return eventually(check, within=within)

    def jobs(self, name: str = "resnet") -> list[Any]:
        return list(self.batch.list_namespaced_job(self.namespace, label_selector=f"apparate.dev/model={name}").items)

    def pods(self, component: str, name: str = "resnet") -> list[Any]:
        chosen = f"apparate.dev/model={name},app.kubernetes.io/component={component}"
        return list(self.core.list_namespaced_pod(self.namespace, label_selector=chosen).items)

    def deployment(self, name: str = "resnet") -> Any:
        """The workers' Deployment, or None."""
        found = self.apps.list_namespaced_deployment(
            self.namespace, field_selector=f"metadata.name={name}-worker"
        ).items
        return found[0] if found else None

    def prepare(self, name: str = "resnet", ramps: int = 3) -> None:
        """The preparation of what the model asks for now ends well."""
        eventually(lambda: self.get(name).get("status"), within=20)
        model = EarlyExitModel.model_validate({k: v for k, v in self.get(name).items() if k != "status"})
        self.cluster.apply(catalog_body(model, catalog=a_catalog(ramps)))

    def events(self, name: str = "resnet") -> list[tuple[str, str]]:
        """(reason, message) of the Events about a model."""
        found = self.core.list_namespaced_event(self.namespace, field_selector=f"involvedObject.name={name}").items
        return [(one.reason, one.message) for one in found if one.involved_object.kind == "EarlyExitModel"]

    def edit(self, what: str, *operations: Json) -> None:
        """Somebody's `kubectl edit`: a JSON patch of an object such as `service/resnet`."""
        self.cluster.kubectl("patch", "-n", self.namespace, what, "--type=json", "-p", json.dumps(operations))

    def read(self, what: str) -> Json:
        """An object such as `service/resnet`."""
        return self.cluster.get(what, "-n", self.namespace)

    def pod_status(self, pod: Any, **status: Any) -> None:
        self.core.patch_namespaced_pod_status(pod.metadata.name, self.namespace, {"status": status})

    def start_workers(self, count: int = 1, name: str = "resnet") -> None:
        """All worker pods run and are ready."""

        def made() -> list[Any]:
            pods = [pod for pod in self.pods("worker", name) if not pod.metadata.deletion_timestamp]
            assert len(pods) >= count, [pod.metadata.name for pod in pods]
            return pods

        for pod in eventually(made, within=30):
            with contextlib.suppress(client.exceptions.NotFoundException):  # a rollout took it away just now
                self.start(pod)

    def start(self, pod: Any) -> None:
        """A worker pod runs and is ready."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        running = {"name": "worker", "ready": True, "restartCount": 0, "image": "w", "imageID": "w"}
        self.pod_status(
            pod,
            phase="Running",
            conditions=[{"type": "Ready", "status": "True", "lastTransitionTime": now}],
            containerStatuses=[running | {"state": {"running": {"startedAt": now}}}],
        )

    def serve(self, body: Json) -> None:
        """Create a model and see it through until it is ready."""
        self.create(body)
        name = body["metadata"]["name"]
        self.prepare(name)
        eventually(lambda: self.deployment(name), within=20)
        wanted = int(body["spec"].get("serving", {}).get("replicas", 1))
        self.start_workers(wanted, name)
        eventually(lambda: self.condition("Ready", name)[0] == "True", within=30)

    def leftovers(self) -> list[str]:
        """Everything of any model that is still there."""
        kinds = "jobs,deployments,pods,configmaps,secrets,pvc,services,serviceaccounts,roles,rolebindings,pdb,hpa"
        chosen = "app.kubernetes.io/managed-by=apparate-operator"
        return self.cluster.kubectl("get", kinds, "-n", self.namespace, "-l", chosen, "-o", "name").split()
