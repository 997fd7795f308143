"""What the operator's benchmark does with a cluster: models, counts, a stand-in for the kubelet."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import urllib3

from apparate.catalog import RampCatalog
from apparate.contract.schema import crd
from apparate.service.kube import APPLY, MERGE, NOT_FOUND, KubeError, from_kubeconfig, model_path, models_path

Json = dict[str, Any]
Writes = Counter[str]
NAMESPACE = "bench"
OURS = {"labelSelector": "app.kubernetes.io/managed-by=apparate-operator"}
REVISION, MODEL = "apparate.dev/revision", "apparate.dev/model"
CHILDREN = (
    "/apis/batch/v1/namespaces/bench/jobs",
    "/apis/apps/v1/namespaces/bench/deployments",
    "/api/v1/namespaces/bench/services",
    "/api/v1/namespaces/bench/serviceaccounts",
    "/api/v1/namespaces/bench/configmaps",
    "/api/v1/namespaces/bench/secrets",
    "/api/v1/namespaces/bench/persistentvolumeclaims",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/bench/roles",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/bench/rolebindings",
    "/apis/policy/v1/namespaces/bench/poddisruptionbudgets",
)
CRD_PAUSE_S = 2.5  # the API server holds back the first objects of a new resource for two seconds
JOBS, DEPLOYMENTS = CHILDREN[:2]
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WRITE = re.compile(r"^apiserver_request_total\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')
WRITING = {"POST", "PUT", "PATCH", "APPLY", "DELETE"}
NOT_STATE = {"leases", "tokenreviews", "subjectaccessreviews", "selfsubjectaccessreviews", "token"}
CATALOG = RampCatalog(
    batch_sizes=(1, 8),
    reach_ms=np.outer((1.0, 2.0), np.arange(1.0, 13.0)),
    overhead_ms=np.full((2, 12), 0.01),
    full_ms=np.array((14.0, 28.0)),
)
SPEC: Json = {
    "model": {
        "source": "pvc://models/classifier",
        "entrypoint": "classifier:build",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [16]}],
    },
    "bootstrap": {"data": "pvc://models/bootstrap.npz"},
}


class Api:
    """The benchmark's own calls."""

    def __init__(self, kubeconfig: Path) -> None:
        self.client, _ = from_kubeconfig(str(kubeconfig))

    def prepare(self) -> None:
        """The resource and a namespace."""
        made = crd()
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{made['metadata']['name']}"
        self.client.call("PATCH", path, query={"fieldManager": "bench"}, body=made, content_type=APPLY)
        self.client.call("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACE}})
        while not self._serves():
            time.sleep(0.1)
        time.sleep(CRD_PAUSE_S)

    def _serves(self) -> bool:
        try:
            self.client.call("GET", models_path(NAMESPACE))
        except KubeError as error:
            if error.status == NOT_FOUND or error.passing:
                return False
            raise
        return True

    def create_model(self, name: str) -> None:
        """One EarlyExitModel."""
        body = {
            "apiVersion": "apparate.dev/v1alpha1",
            "kind": "EarlyExitModel",
            "metadata": {"name": name},
            "spec": SPEC,
        }
        self.client.call("POST", models_path(NAMESPACE), body=body, timeout_s=60)

    def scale(self, name: str, replicas: int) -> None:
        """A change of a spec that its Deployment shows."""
        body = {"spec": {"serving": {"replicas": replicas}}}
        self.client.call("PATCH", model_path(NAMESPACE, name), body=body, content_type=MERGE)

    def list(self, path: str, query: Mapping[str, Any] = OURS) -> list[Json]:
        """All objects of a collection."""
        found: list[Json] = self.client.call("GET", path, query=query, timeout_s=60).get("items") or []
        return found

    def reconciled(self) -> int:
        """Models with a Job and a status for their generation."""
        working = {job["metadata"]["ownerReferences"][0]["name"] for job in self.list(JOBS)}
        return sum(
            model["metadata"]["name"] in working
            and (model.get("status") or {}).get("observedGeneration") == model["metadata"]["generation"]
            for model in self.list(models_path(NAMESPACE), {})
        )

    def ready(self) -> int:
        """Models that serve."""
        return sum(
            any(
                c["type"] == "Ready" and c["status"] == "True"
                for c in (model.get("status") or {}).get("conditions", ())
            )
            for model in self.list(models_path(NAMESPACE), {})
        )

    def child_versions(self) -> set[tuple[str, str, str]]:
        """Kind, name and resource version of everything that the operator made."""
        return {
            (path, child["metadata"]["name"], child["metadata"]["resourceVersion"])
            for path in CHILDREN
            for child in self.list(path)
        }

    def writes(self) -> Writes:
        """Writes since the API server started, as "verb resource/subresource"; Leases and access reviews left out."""
        response = self.client.stream("/metrics", {}, 60)
        try:
            text = response.read().decode()
        finally:
            response.release_conn()
        counted: Writes = Counter()
        for labels, value in WRITE.findall(text):
            of = dict(LABEL.findall(labels))
            if of["verb"] in WRITING and of["resource"] not in NOT_STATE and of["subresource"] not in NOT_STATE:
                counted[f"{of['verb']} {of['resource']}/{of['subresource']}".rstrip("/")] += int(float(value))
        return counted


def writes_between(before: Writes, after: Writes) -> dict[str, int]:
    """What was written between two counts."""
    return {what: count - before[what] for what, count in after.items() if count != before[what]}


class Kubelet:
    """Plays the kubelet: prepare pods publish a catalog and succeed, worker pods become ready."""

    def __init__(self, api: Api) -> None:
        self._api, self._over, self._done = api, threading.Event(), set[str]()
        self._thread = threading.Thread(target=self._run, name="kubelet")
        self._thread.start()

    def close(self) -> None:
        """Stop playing."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(4) as several:
            while not self._over.wait(1):
                fresh = [pod for pod in self._api.list(PODS) if pod["metadata"]["uid"] not in self._done]
                list(several.map(self._play, fresh))

    def _play(self, pod: Json) -> None:
        meta = pod["metadata"]
        preparing = meta["labels"]["app.kubernetes.io/component"] == "prepare"
        if preparing:
            self._publish(meta)
        state = {"phase": "Succeeded"} if preparing else {"phase": "Running"} | _ready()
        try:
            self._api.client.call("PATCH", f"{PODS}/{meta['name']}/status", body={"status": state}, content_type=MERGE)
        except KubeError as error:
            if error.status != NOT_FOUND:
                raise
        self._done.add(meta["uid"])

    def _publish(self, meta: Json) -> None:
        job = self._api.client.call("GET", f"{JOBS}/{meta['labels']['job-name']}")
        command = job["spec"]["template"]["spec"]["containers"][0]["command"]
        name = next(word.removeprefix("--publish=") for word in command if word.startswith("--publish="))
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": name,
                "labels": {k: v for k, v in job["metadata"]["labels"].items() if "batch" not in k},
                "annotations": {REVISION: job["metadata"]["annotations"][REVISION]},
                "ownerReferences": job["metadata"]["ownerReferences"],
            },
            "data": {"catalog.json": json.dumps(CATALOG.to_json())},
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"
        self._api.client.call("PATCH", path, query={"fieldManager": "bench"}, body=body, content_type=APPLY)


def _ready() -> Json:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    true = {"status": "True", "lastTransitionTime": now}
    return {"conditions": [{"type": kind, **true} for kind in ("Ready", "ContainersReady", "PodScheduled")]}


class SeenReplicas:
    """When each Deployment was first seen with a number of replicas."""

    def __init__(self, api: Api) -> None:
        self._seen: dict[tuple[str, int], float] = {}
        self._news = threading.Condition()
        self._response = api.client.stream(DEPLOYMENTS, {**OURS, "watch": "true"}, 600)
        self._thread = threading.Thread(target=self._run, name="deployments", daemon=True)
        self._thread.start()

    def wait(self, name: str, replicas: int, within_s: float = 60) -> float:
        """The monotonic time of that sight. Ends the program when it does not come."""
        with self._news:
            if not self._news.wait_for(lambda: (name, replicas) in self._seen, within_s):
                raise SystemExit(f"Deployment {name} has not {replicas} replicas after {within_s} s")
            return self._seen[name, replicas]

    def close(self) -> None:
        """Stop watching."""
        self._response.shutdown()
        self._thread.join(5)

    def _run(self) -> None:
        rest = b""
        try:
            for chunk in self._response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    found = json.loads(line)["object"]
                    key = (found["metadata"]["labels"][MODEL], found["spec"]["replicas"])
                    with self._news:
                        self._seen.setdefault(key, time.monotonic())
                        self._news.notify_all()
        except (urllib3.exceptions.HTTPError, OSError, ValueError):
            return
