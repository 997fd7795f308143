"""The stage of the end-to-end tests: one cluster with pods, one release of the chart, one model in it, and waiting.

Whatever is asked of it that is there already stays as it is, so each test can be run again alone on a kept cluster.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import urllib3
import yaml
from kubernetes import client

from support.helm import CHART, Helm
from support.kube import ROOT, Cluster, KubectlFailed

T = TypeVar("T")
SYSTEM, DEMO = "apparate", "demo"
"""Namespaces of the release and of the models; both enforce `restricted`."""
MODEL, PLAIN = "person", "person-plain"
TUTORIAL = ROOT / "docs" / "tutorials" / "one-node"
VALUES = ROOT / "tools" / "images" / "values.yaml"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
CONDITIONS = "{range .status.conditions[*]}{.type}={.status} {.reason}: {.message}{'\\n'}{end}"
LOOK_S = 0.5
UNREACHABLE = (client.ApiException, urllib3.exceptions.HTTPError, KubectlFailed)
"""What asking raises while the API server is away, or while an object is not there yet."""


class TooLate(AssertionError):
    """Something did not come about in time; the text has the last state."""


class Stage:
    """The cluster as the tests see it: reading objects is cheap, waiting is bounded and tells what it saw last."""

    def __init__(self, cluster: Cluster, out: Path) -> None:
        self.cluster, self.out = cluster, out
        logging.getLogger("urllib3").setLevel(logging.ERROR)  # it tells each try while the API server is away
        self.kept_model = False
        """Whether the model was there before these tests began: an earlier run left it."""
        self.helm = Helm(cluster.bin / "helm", cluster.environ)
        api = cluster.api_client()
        self.core, self.apps = client.CoreV1Api(api), client.AppsV1Api(api)
        self._objects = client.CustomObjectsApi(api)

    def model(self, name: str = MODEL) -> dict[str, Any]:
        """The EarlyExitModel."""
        found: dict[str, Any] = self._objects.get_namespaced_custom_object(
            "apparate.dev", "v1alpha1", DEMO, "earlyexitmodels", name, _request_timeout=10
        )
        return found

    def status(self, name: str = MODEL) -> dict[str, Any]:
        """Its status; empty while there is none."""
        found: dict[str, Any] = self.model(name).get("status") or {}
        return found

    def condition(self, kind: str, name: str = MODEL) -> dict[str, Any]:
        """One of its conditions; status Unknown while it is not there."""
        there = {one["type"]: one for one in self.status(name).get("conditions", ())}
        return there.get(kind, {"status": "Unknown", "reason": "", "message": ""})

    def holds(self, *kinds: str, name: str = MODEL) -> bool:
        """Whether all of the conditions are True for the generation that is there now."""
        model = self.model(name)
        there = {one["type"]: one for one in (model.get("status") or {}).get("conditions", ())}
        seen = (model.get("status") or {}).get("observedGeneration", 0) >= model["metadata"]["generation"]
        return seen and all(there.get(kind, {}).get("status") == "True" for kind in kinds)

    def revision(self, name: str = MODEL) -> int:
        """Revision of the plan in force."""
        return int((self.status(name).get("plan") or {}).get("revision", 0))

    def pods(self, namespace: str, selector: str) -> list[Any]:
        """Pods that are not on their way out, by name."""
        found = self.core.list_namespaced_pod(namespace, label_selector=selector, _request_timeout=10).items
        return sorted((one for one in found if not one.metadata.deletion_timestamp), key=lambda one: one.metadata.name)

    def component(self, name: str) -> list[Any]:
        """Pods of operator, controller or redis."""
        return self.pods(SYSTEM, f"app.kubernetes.io/component={name}")

    def workers(self, name: str = MODEL) -> list[Any]:
        """Worker pods of a model."""
        return self.pods(DEMO, f"apparate.dev/model={name},app.kubernetes.io/component=worker")

    def ended(self, uids: set[str]) -> bool:
        """Whether none of these worker pods is left, not even on its way out."""
        return not uids & {pod.metadata.uid for pod in self.all_workers()}

    def all_workers(self) -> list[Any]:
        """Worker pods of the model, also those on their way out."""
        selector = f"apparate.dev/model={MODEL},app.kubernetes.io/component=worker"
        found: list[Any] = self.core.list_namespaced_pod(DEMO, label_selector=selector, _request_timeout=10).items
        return found

    def deployment(self, name: str, namespace: str = DEMO) -> Any:
        """A Deployment."""
        return self.apps.read_namespaced_deployment(name, namespace, _request_timeout=10)

    def rolled_out(self, name: str, namespace: str = DEMO) -> bool:
        """Whether all pods of a Deployment are of its newest kind and ready, and no other is left."""
        there = self.deployment(name, namespace)
        want, status = there.spec.replicas, there.status
        return (
            (status.observed_generation or 0) >= there.metadata.generation
            and (status.updated_replicas or 0) == want == (status.replicas or 0)
            and (status.ready_replicas or 0) == want
        )

    def ready(self, component: str) -> bool:
        """Whether there is a ready pod of operator, controller or redis."""
        return any(is_ready(pod) for pod in self.component(component))

    def patch(self, spec: Mapping[str, Any], name: str = MODEL) -> int:
        """Merge into the model's spec, as `kubectl patch` does; its generation afterwards."""
        there: dict[str, Any] = self._objects.patch_namespaced_custom_object(
            "apparate.dev", "v1alpha1", DEMO, "earlyexitmodels", name, {"spec": spec}, _request_timeout=10
        )
        return int(there["metadata"]["generation"])

    def wait(self, what: str, look: Callable[[], T], within: float) -> T:
        """The first truthy value of `look`, which may raise while the API is away. Raises TooLate with the state."""
        began = time.monotonic()
        while True:
            try:
                value: Any = look()
            except UNREACHABLE as error:
                value = error
            if value and not isinstance(value, Exception):
                found: T = value
                return found
            if time.monotonic() - began > within:
                raise TooLate(f"not within {within:g} s: {what}; last looked: {value!r:.500}\n{self.state()}")
            time.sleep(LOOK_S)

    def state(self) -> str:
        """Pods and models as they are now, for a person."""
        asked = (
            ("get", "eem", "-A", "-o", "wide"),
            ("get", "pods", "-A", "-o", "wide"),
            ("get", "eem", MODEL, "-n", DEMO, "-o", f"jsonpath={CONDITIONS}"),
        )
        return "\n".join(self.said(*arguments) for arguments in asked)

    def said(self, *arguments: str) -> str:
        """What kubectl prints, or its complaint."""
        try:
            return self.cluster.kubectl(*arguments)
        except Exception as error:  # noqa: BLE001 - this is for a report of what is wrong already
            return f"kubectl {' '.join(arguments)}: {error}"

    def apply_file(self, path: Path, **changes: Callable[[dict[str, Any]], None]) -> None:
        """kubectl apply of a file, each of its kinds changed by the function of that name."""
        documents = [one for one in yaml.safe_load_all(path.read_text()) if one]
        for one in documents:
            changes.get(one["kind"], lambda _: None)(one)
        self.cluster.apply(*documents, namespace=DEMO)

    def make_namespace(self, name: str) -> None:
        """A namespace that enforces `restricted`, if it is not there; one that is being deleted is waited for."""
        fresh = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}
        self.wait(f"namespace {name} can be made", lambda: self._active(name, fresh), within=90)

    def _active(self, name: str, fresh: dict[str, Any]) -> bool:
        self.cluster.apply(fresh)
        return bool(self.core.read_namespace(name).status.phase == "Active")

    def install(self, *arguments: str, chart: Path = CHART) -> str:
        """helm upgrade --install with the cluster's values, waiting for the pods."""
        fixed = ["-n", SYSTEM, "-f", str(VALUES), "--wait", "--timeout", "80s"]
        return self.helm("upgrade", "--install", "apparate", str(chart), *fixed, *arguments)

    def kill(self, pod: Any, command: str) -> None:
        """SIGKILL to the processes of a pod whose command line matches, from outside, as the kernel does it."""
        killed = 0
        for pid in pids_of(pod.metadata.uid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a probe that has ended meanwhile
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if re.search(command, line):
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
        assert killed, f"pod {pod.metadata.name} has no process like {command!r} on this machine"


def is_ready(pod: Any) -> bool:
    """Whether a pod is ready and stays."""
    conditions = pod.status.conditions or ()
    return not pod.metadata.deletion_timestamp and any(c.type == "Ready" and c.status == "True" for c in conditions)


def pids_of(uid: str) -> list[int]:
    """Processes of this machine that are in a pod's cgroup."""
    marks = (uid.encode(), uid.replace("-", "_").encode())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            groups = (folder / "cgroup").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if any(mark in groups for mark in marks):
            found.append(int(folder.name))
    return found
