"""EarlyExitModels in a real API server: made, prepared as the operator would, and looked at."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.plan import Plan
from apparate.service.kube import MERGE, Json, KubeClient, apply_status, from_kubeconfig, model_path, models_path
from support.control import CATALOG
from support.kube import Cluster

OPERATOR = "apparate-operator"


def a_client(cluster: Cluster, kubeconfig: Path | None = None) -> KubeClient:
    """A client with full rights, or with those of `kubeconfig`."""
    return from_kubeconfig(str(kubeconfig or cluster.kubeconfig))[0]


class Objects:
    """The EarlyExitModels of one namespace."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster, self.namespace = cluster, namespace
        self.client = a_client(cluster)

    def create(self, name: str = "m", **spec: Any) -> Json:
        """An object that nothing has happened to yet."""
        content = {
            "apiVersion": "apparate.dev/v1alpha1",
            "kind": "EarlyExitModel",
            "metadata": {"name": name},
            "spec": {
                "model": {
                    "source": "pvc://models/m.safetensors",
                    "entrypoint": "a.b:c",
                    "inputs": [{"name": "x", "datatype": "FP32", "shape": [16]}],
                },
                "bootstrap": {"data": "pvc://models/data.npz"},
                **spec,
            },
        }
        return self.client.call("POST", models_path(self.namespace), body=content)

    def prepare(self, name: str = "m", catalog: RampCatalog = CATALOG) -> Json:
        """Publish a catalog and name it in the status, as the Job and the operator do."""
        configmap = f"{name}-catalog-{catalog.digest[:8]}"
        body = {"metadata": {"name": configmap}, "data": {"catalog.json": json.dumps(catalog.to_json())}}
        self.client.call("POST", f"/api/v1/namespaces/{self.namespace}/configmaps", body=body)
        ramps = [{"ramp": ramp, "layer": layer} for ramp, layer in enumerate(catalog.layers)]
        status = {
            "catalog": {"digest": catalog.digest, "ramps": ramps, "maxActiveRamps": 3, "configMap": configmap},
            "conditions": [
                {
                    "type": "Prepared",
                    "status": "True",
                    "reason": "Prepared",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        }
        return self.apply(status, name, OPERATOR)

    def apply(self, status: Json, name: str, manager: str) -> Json:
        """Server-side apply of a status share."""
        body = {
            "apiVersion": "apparate.dev/v1alpha1",
            "kind": "EarlyExitModel",
            "metadata": {"name": name, "namespace": self.namespace},
            "status": status,
        }
        return apply_status(self.client, self.namespace, name, body, manager)

    def get(self, name: str = "m") -> Json:
        """The object as it is."""
        return self.client.call("GET", model_path(self.namespace, name))

    def status(self, name: str = "m") -> Json:
        """Its status."""
        found: Json = self.get(name).get("status", {})
        return found

    def plan(self, name: str = "m") -> Json:
        """Its plan; empty when there is none."""
        found: Json = self.status(name).get("plan", {})
        return found

    def condition(self, kind: str, name: str = "m") -> Json:
        """One condition; empty when it is not there."""
        found = [one for one in self.status(name).get("conditions", []) if one["type"] == kind]
        return found[0] if found else {}

    def put_plan(self, plan: Plan | PlanStatus, name: str = "m") -> Json:
        """Write a plan by hand, as a person with kubectl does."""
        shape = plan if isinstance(plan, PlanStatus) else PlanStatus.of(plan, reason="ByHand")
        return self.put_raw_plan(shape.model_dump(mode="json", by_alias=True), name)

    def put_raw_plan(self, plan: Json, name: str = "m") -> Json:
        """The same with whatever is written there."""
        body = {"status": {"plan": plan}}
        path = f"{model_path(self.namespace, name)}/status"
        return self.client.call("PATCH", path, query={"fieldManager": "kubectl-edit"}, body=body, content_type=MERGE)

    def change(self, spec: Json, name: str = "m") -> Json:
        """Merge into the spec."""
        return self.client.call("PATCH", model_path(self.namespace, name), body={"spec": spec}, content_type=MERGE)

    def delete(self, name: str = "m") -> None:
        """Delete it."""
        self.client.call("DELETE", model_path(self.namespace, name))

    def reader_of(self, name: str = "m", server: str | None = None) -> Path:
        """Kubeconfig of a ServiceAccount that may only get and watch that one object, as a worker's may."""
        own = {"apiGroups": ["apparate.dev"], "resources": ["earlyexitmodels"], "resourceNames": [name]}
        return self.account(f"{name}-worker", [{**own, "verbs": ["get", "watch"]}], server)

    def account(self, account: str, rules: list[Json], server: str | None = None) -> Path:
        """Kubeconfig of a ServiceAccount with these rights in the namespace; called again, it changes them."""
        subject = {"kind": "ServiceAccount", "name": account, "namespace": self.namespace}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account}
        rbac = "rbac.authorization.k8s.io/v1"
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
            {"apiVersion": rbac, "kind": "Role", "metadata": {"name": account}, "rules": rules},
            {
                "apiVersion": rbac,
                "kind": "RoleBinding",
                "metadata": {"name": account},
                "roleRef": role,
                "subjects": [subject],
            },
            namespace=self.namespace,
        )
        return self.cluster.kubeconfig_of(self.namespace, account, server=server)
