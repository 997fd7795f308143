"""A one-node cluster with real pods for tests, and what they ask of it."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apparate_cluster.node import cluster as node
from apparate_cluster.node.images import BUSYBOX
from support import kube
from support.eventually import eventually

missing = functools.cache(node.missing)


class Node(node.OneNodeCluster):
    """`OneNodeCluster`, which loads images and restarts the API server, with `cluster`, which talks to its API."""

    cluster: kube.Cluster


def a_pod(name: str, *command: str, resources: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    """A pod of one container with busybox that satisfies the Pod Security level `restricted`."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "command": list(command or ("sleep", "3600")),
        "resources": {"limits": resources or {}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        **spec.pop("container", {}),
    }
    restricted = {"runAsNonRoot": True, "runAsUser": 65_532, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "containers": [container],
            "securityContext": restricted,
            "terminationGracePeriodSeconds": 0,
            **spec,
        },
    }


@contextlib.contextmanager
def a_node(folder: Path | None = None, *, gpus: int = node.GPUS) -> Iterator[Node]:
    """A one-node cluster of the test's own in `folder`, which is gone when the block ends.

    Without a folder it is the one of `make cluster-up`; when that does not run it is started, and ended afterwards.
    Its images stay.
    """
    one = Node(folder)
    started = one.up(gpus=gpus)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="apparate-node-") as scratch,
            contextlib.closing(kube.Cluster(one.kubeconfig, Path(scratch))) as one.cluster,
        ):
            yield one
    finally:
        if folder:
            one.forget()
        elif started:
            one.down()


def run(cluster: kube.Cluster, namespace: str, *pods: dict[str, Any], within: float = 60) -> None:
    """Make the pods and wait until each is Ready."""
    cluster.apply(*pods, namespace=namespace)
    names = [pod["metadata"]["name"] for pod in pods]
    cluster.kubectl("wait", "pod", *names, "-n", namespace, "--for=condition=Ready", f"--timeout={within:.0f}s")


def settled(cluster: kube.Cluster, namespace: str, phases: dict[str, str], within: float = 60) -> None:
    """Wait until the pods of the namespace have these phases."""

    def same() -> bool:
        found = {
            one["metadata"]["name"]: one["status"]["phase"] for one in cluster.get("pods", "-n", namespace)["items"]
        }
        assert found == phases, found
        return True

    eventually(same, within=within)
