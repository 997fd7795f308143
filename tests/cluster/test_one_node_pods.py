"""What pods find in the one-node cluster: names, Services, volumes, pretended GPUs, and a way in from the host."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from apparate_cluster.node import loading
from apparate_cluster.node.images import PAUSE
from support.eventually import eventually
from support.kube import Cluster, KubectlFailed
from support.node import BUSYBOX, Node, a_node, a_pod, run, settled
from support.processes import a_process

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ANSWER = "it is me"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A cluster of these tests' own."""
    with a_node(tmp_path_factory.mktemp("node")) as made:
        yield made


@pytest.fixture(scope="module")
def room(node: Node) -> Iterator[str]:
    """A namespace where only restricted pods may run, with one that serves HTTP, and its Service `web`."""
    with node.cluster.namespace({"pod-security.kubernetes.io/enforce": "restricted"}) as name:
        serve = f"echo '{ANSWER}' >/tmp/index.html; echo serving; exec httpd -f -p 8080 -h /tmp"
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }
        node.cluster.apply(service, namespace=name)
        run(node.cluster, name, a_pod("server", "sh", "-c", serve), a_pod("client"))
        yield name


@pytest.mark.parametrize("host", ["web", "web.{room}", "web.{room}.svc.cluster.local"])
def test_a_pod_resolves_and_reaches_a_service(node: Node, room: str, host: str) -> None:
    eventually(lambda: ANSWER in _fetch(node.cluster, room, "client", host.format(room=room)), within=30)


def test_a_pod_reaches_itself_through_its_service(node: Node, room: str) -> None:
    eventually(lambda: ANSWER in _fetch(node.cluster, room, "server", "web"), within=30)


def test_a_pod_reaches_the_api_server_by_its_name(node: Node, room: str) -> None:
    open_it = ["exec", "client", "-n", room, "--", "bash", "-c", "exec 3<>/dev/tcp/kubernetes.default.svc/443"]
    assert node.cluster.kubectl(*open_it) == ""


def test_logs_are_read_from_the_host(node: Node, room: str) -> None:
    assert node.cluster.kubectl("logs", "server", "-n", room) == "serving\n"


def test_a_port_is_forwarded_to_the_host(node: Node, room: str) -> None:
    command = [str(node.cluster.bin / "kubectl"), "port-forward", "-n", room, "service/web", ":80"]
    with a_process(command, node.cluster.environ) as forward:
        port = eventually(lambda: re.search(r"127\.0\.0\.1:(\d+)", "\n".join(forward.out)), within=30).group(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
            assert answer.read().decode().strip() == ANSWER


def test_a_gpu_is_given_to_one_pod_only(node: Node, room: str) -> None:
    wanted = {"nvidia.com/gpu": "1"}
    with node.cluster.namespace() as name:
        run(node.cluster, name, a_pod("one", resources=wanted), a_pod("two", resources=wanted))
        node.cluster.apply(a_pod("three", resources=wanted), namespace=name)
        settled(node.cluster, name, {"one": "Running", "two": "Running", "three": "Pending"})
        reason = eventually(lambda: _unscheduled(node.cluster, name, "three"))
        assert "Insufficient nvidia.com/gpu" in reason
        own = [
            node.cluster.kubectl("exec", pod, "-n", name, "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES")
            for pod in ("one", "two")
        ]
        assert len(set(own)) == 2
        node.cluster.kubectl("delete", "pod", "one", "-n", name)
        settled(node.cluster, name, {"two": "Running", "three": "Running"})


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteMany"])
def test_a_claim_gets_a_volume_that_is_deleted_with_it(node: Node, room: str, mode: str) -> None:
    with node.cluster.namespace() as name:
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": {"accessModes": [mode], "resources": {"requests": {"storage": "1Mi"}}},
        }
        node.cluster.apply(claim, namespace=name)
        mount = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        run(
            node.cluster,
            name,
            a_pod("writer", "sh", "-c", "echo kept >/data/it; sleep 3600", container=mount, volumes=volumes),
        )
        made = node.cluster.get("pvc", "data", "-n", name)["spec"]["volumeName"]
        folder: Path = node.folder.volumes / made
        assert eventually(lambda: (folder / "it").exists() and (folder / "it").read_text()) == "kept\n"
        node.cluster.kubectl("delete", "pod/writer", "pvc/data", "-n", name)
        eventually(lambda: not folder.exists(), within=30)
        eventually(lambda: made not in node.cluster.kubectl("get", "pv", "-o", "name"), within=30)


def test_pods_stay_while_the_api_server_is_away(node: Node, room: str) -> None:
    node.restart_api_server(seconds_down=2)
    pod = node.cluster.get("pod", "client", "-n", room)
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_process_of_the_cluster_that_dies_is_started_again(node: Node, room: str) -> None:
    os.kill(_process(str(node.folder.work / "Corefile")), signal.SIGKILL)
    eventually(lambda: node.status()["restarts"].get("coredns") == 1, within=20)
    eventually(lambda: ANSWER in _fetch(node.cluster, room, "client", "web"), within=30)


def test_an_image_archive_is_loaded(node: Node, room: str, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    containerd = ["ctr", "--address", str(node.folder.containerd), "--namespace", "k8s.io", "images"]
    subprocess.run([*containerd, "tag", BUSYBOX, "localhost/shell:2"], check=True, capture_output=True)
    subprocess.run([*containerd, "export", str(archive), "localhost/shell:2"], check=True, capture_output=True)
    subprocess.run([*containerd, "rm", "localhost/shell:2"], check=True, capture_output=True)
    node.load(archive)
    run(node.cluster, room, a_pod("loaded", container={"image": "localhost/shell:2"}))
    digest = loading.present(node.folder)["localhost/shell:2"]
    subprocess.run([*containerd, "tag", "--force", PAUSE, "localhost/shell:2"], check=True, capture_output=True)
    node.load(archive)  # an archive that was loaded before, and whose name another image has had since
    assert loading.present(node.folder)["localhost/shell:2"] == digest


def _fetch(cluster: Cluster, namespace: str, pod: str, host: str) -> str:
    """What `host` answers to the pod on port 80."""
    ask = f"exec 3<>/dev/tcp/{host}/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; timeout 5 cat <&3"
    try:
        return cluster.kubectl("exec", pod, "-n", namespace, "--", "bash", "-c", ask)
    except KubectlFailed as error:
        raise AssertionError(str(error)) from None


def _unscheduled(cluster: Cluster, namespace: str, pod: str) -> str:
    conditions = cluster.get("pod", pod, "-n", namespace)["status"].get("conditions", [])
    return next((one["message"] for one in conditions if one["type"] == "PodScheduled" and "message" in one), "")


def _process(argument: str) -> int:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if argument.encode() in (folder / "cmdline").read_bytes().split(b"\0"):
                return int(folder.name)
    raise AssertionError(f"no process has the argument {argument}")
