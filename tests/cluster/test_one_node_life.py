"""A one-node cluster starts, ends or is killed, and the host is as it was before."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from apparate_cluster.debian import search_path
from apparate_cluster.node import cgroups
from apparate_cluster.node.cluster import NotUp, OneNodeCluster
from apparate_cluster.node.places import KERNEL
from support.eventually import eventually
from support.node import a_node, a_pod, run

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (*KERNEL, "net/ipv4/ip_forward")
needs_a_node = [pytest.mark.e2e, pytest.mark.timeout(300)]


def host() -> dict[str, set[str]]:
    """What a cluster could leave behind."""
    environ = {**os.environ, "PATH": search_path()}
    chains = subprocess.run(["iptables-save"], env=environ, capture_output=True, text=True, check=True).stdout
    chains = re.sub(r"\[\d+:\d+\]", "", chains)  # packets and bytes so far
    return {
        "namespaces": _namespaces(),
        "processes": _processes(),
        "mounts": set(Path("/proc/self/mountinfo").read_text().splitlines()),
        "links": {one.name for one in Path("/sys/class/net").iterdir()},
        "routes": set(Path("/proc/net/route").read_text().splitlines()),
        "chains": {line for line in chains.splitlines() if not line.startswith("#")},
        "settings": {f"{name} {(Path('/proc/sys') / name).read_text()}" for name in SETTINGS},
        "cgroups": {str(one) for top in cgroups.hierarchies() for one in top.glob("*/") if one.is_dir()},
    }


def _namespaces() -> set[str]:
    """Network namespaces that a process lives in."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.add(str((process / "ns/net").readlink()))
        except OSError:  # it ended meanwhile, or is not for us to see
            continue
    return found


def _processes() -> set[str]:
    """Processes of any cluster."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "apparate_cluster.node." in line or "/containerd.sock" in line:
            found.add(f"{process.name} {line}")
    return found


def differences(before: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is not as it was."""
    now = host()
    return {kind: now[kind] ^ before[kind] for kind in now if now[kind] != before[kind]}


class TestLife:
    pytestmark = needs_a_node

    def test_the_host_is_as_it_was_after_down(self, tmp_path: Path) -> None:
        before = host()
        with a_node(tmp_path / "cluster") as node:
            with node.cluster.namespace() as name:
                run(node.cluster, name, a_pod("one"))
            assert {"namespaces", "processes"} <= set(differences(before))
        assert differences(before) == {}

    def test_a_killed_cluster_leaves_nothing_but_cgroups_and_comes_again(self, tmp_path: Path) -> None:
        before = host()
        with a_node(tmp_path / "cluster") as node:
            with node.cluster.namespace() as name:
                run(node.cluster, name, a_pod("one"))
            os.kill(node.pid, signal.SIGKILL)
            eventually(lambda: not node.runs(), within=20)
            eventually(lambda: set(differences(before)) <= {"cgroups"}, within=20)
            with pytest.raises(NotUp):
                node.status()
            assert node.up() is True
            assert node.cluster.get("namespaces", "default")["status"]["phase"] == "Active"
            assert node.up() is False
        assert differences(before) == {}

    def test_two_clusters_run_side_by_side(self, tmp_path: Path) -> None:
        with a_node(tmp_path / "one") as one, a_node(tmp_path / "two", gpus=0) as two:
            one.cluster.apply(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}}, namespace="default"
            )
            assert "mine" not in two.cluster.kubectl("get", "configmaps")
            one.down()
            assert two.status()["running"]["kubelet"]

    def test_a_start_that_fails_says_why_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        broken = tmp_path / "tools" / "etcd"
        broken.parent.mkdir()
        broken.write_text("#!/bin/sh\necho the disk is full\nexit 3\n")
        broken.chmod(0o755)
        monkeypatch.setenv("KUBEBUILDER_ASSETS", str(broken.parent))
        before = host()
        with pytest.raises(NotUp, match=r"(?s)etcd ended with 3.*the disk is full"):
            OneNodeCluster(tmp_path / "cluster").up()
        assert differences(before) == {}


def test_status_of_what_is_down_names_the_command(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "tools/cluster")}
    command = [sys.executable, "-m", "apparate_cluster.node", "status", "--folder", str(tmp_path)]
    said = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (said.returncode, "make cluster-up" in said.stdout) == (1, True)
