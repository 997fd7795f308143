"""The custom metrics API in the cluster, which an autoscaler asks, served by `metrics_adapter.py` in a pod."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import metrics_adapter
from support.e2e import DEMO, MODEL, Stage

NAME = "metrics-adapter"
API = "v1beta2.custom.metrics.k8s.io"
META = {"name": NAME, "namespace": DEMO}


@contextmanager
def served(stage: Stage) -> Iterator[None]:
    """The API is there and has values; afterwards it is gone, or every deletion of a namespace would wait for it."""
    stage.cluster.apply(*manifests(image_of_demo(stage)))
    path = f"{metrics_adapter.GROUP}/namespaces/{DEMO}/pods/*/apparate_in_flight_requests"
    try:
        has_values = lambda: '"value"' in stage.cluster.kubectl("get", "--raw", path)  # noqa: E731
        stage.wait("the custom metrics API has values", has_values, within=60)
        yield
    finally:
        stage.cluster.kubectl("delete", "apiservice", API, "--ignore-not-found", "--timeout=30s")
        kinds = "deployment,service,secret,configmap,serviceaccount,role,rolebinding"
        stage.cluster.kubectl("delete", kinds, NAME, "-n", DEMO, "--ignore-not-found", "--timeout=30s")


def image_of_demo(stage: Stage) -> str:
    """The image that the load generator runs."""
    pod: Any = stage.pods(DEMO, "app=load")[0]
    return str(pod.spec.containers[0].image)


def manifests(image: str) -> list[dict[str, Any]]:
    """Pod, certificate, rights, and the registration of the API."""
    certificate, key = a_certificate(f"{NAME}.{DEMO}.svc")
    group, version = API.split(".", 1)[1], API.split(".", 1)[0]
    read = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME}
    spec = {
        "service": {"name": NAME, "namespace": DEMO, "port": 443},
        "group": group,
        "version": version,
        "insecureSkipTLSVerify": True,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": META},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": META, "rules": [read]},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": META,
            "roleRef": role,
            "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": DEMO}],
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": META,
            "data": {"adapter.py": Path(metrics_adapter.__file__).read_text()},
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": META,
            "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": certificate, "tls.key": key},
        },
        deployment(image),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": META,
            "spec": {"selector": {"app": NAME}, "ports": [{"port": 443, "targetPort": 8443}]},
        },
        {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": API}, "spec": spec},
    ]


def deployment(image: str) -> dict[str, Any]:
    """The adapter's pod, which `restricted` admits."""
    selector = f"apparate.dev/model={MODEL},app.kubernetes.io/component=worker"
    container = {
        "name": NAME,
        "image": image,
        "command": ["python", "/code/adapter.py", DEMO, selector],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": name, "mountPath": f"/{name}", "readOnly": True} for name in ("code", "tls")],
    }
    pod = {
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "code", "configMap": {"name": NAME}},
            {"name": "tls", "secret": {"secretName": NAME}},
        ],
    }
    template = {"metadata": {"labels": {"app": NAME}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": NAME}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": META, "spec": spec}


def a_certificate(name: str) -> tuple[str, str]:
    """(certificate, key) for a name, signed by itself."""
    with tempfile.TemporaryDirectory() as scratch:
        crt, key = Path(scratch) / "tls.crt", Path(scratch) / "tls.key"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        subprocess.run([*command, "-keyout", key, "-out", crt], check=True, capture_output=True, timeout=60)
        return crt.read_text(), key.read_text()
