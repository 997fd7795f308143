"""The control plane that all cluster tests stand on: it is a real one, and it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from kubernetes import client

from support import kube
from support.eventually import eventually
from support.processes import a_process, is_alive

pytestmark = pytest.mark.cluster


def test_the_api_is_that_of_the_pinned_version(control_plane: kube.Cluster) -> None:
    assert f'"gitVersion": "{kube.binaries.KUBERNETES}"' in control_plane.kubectl("version", "-o", "json")


def test_children_are_collected_when_their_owner_goes(control_plane: kube.Cluster, namespace: str) -> None:
    core = client.CoreV1Api(control_plane.api_client())
    owner = core.create_namespaced_config_map(namespace, {"metadata": {"name": "owner"}})
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
    core.create_namespaced_config_map(namespace, {"metadata": {"name": "child", "ownerReferences": [reference]}})
    core.delete_namespaced_config_map("owner", namespace)
    eventually(
        lambda: "child" not in {one.metadata.name for one in core.list_namespaced_config_map(namespace).items},
        within=30,
    )


def test_a_service_account_has_no_more_rights_than_it_was_given(control_plane: kube.Cluster, namespace: str) -> None:
    core = client.CoreV1Api(control_plane.api_client(control_plane.kubeconfig_of(namespace, "default")))
    with pytest.raises(client.ApiException, match="Forbidden"):
        core.list_namespaced_secret(namespace)


def test_kubectl_errors_are_raised_with_what_kubectl_said(control_plane: kube.Cluster, namespace: str) -> None:
    with pytest.raises(kube.KubectlFailed, match="NotFound"):
        control_plane.kubectl("get", "configmap", "none-such", "-n", namespace)


def test_two_control_planes_know_nothing_of_each_other(
    control_plane: kube.Cluster, bare_control_plane: kube.Cluster
) -> None:
    with bare_control_plane.namespace() as only_here:
        assert only_here not in control_plane.kubectl("get", "namespaces")


def test_a_control_plane_ends_with_the_test_run_that_started_it_even_when_that_is_killed(tmp_path: Path) -> None:
    holder = textwrap.dedent("""
        import time
        from support.kube import a_control_plane
        with a_control_plane() as plane:
            print(*plane.pids.values(), plane.supervisor.pid, flush=True)
            time.sleep(100)
    """)
    with a_process([sys.executable, "-c", holder], {"PYTHONPATH": os.pathsep.join(sys.path)}) as process:
        pids = [int(pid) for pid in eventually(lambda: process.out[:1], within=100)[0].split()]
        process.send(signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, pids)), within=60)


def test_its_processes_die_with_a_killed_supervisor(own_control_plane: kube.ControlPlane) -> None:
    own_control_plane.supervisor.kill()
    eventually(lambda: not any(map(is_alive, own_control_plane.pids.values())), within=30)


def test_a_folder_with_something_in_it_is_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    command = [sys.executable, "-m", "apparate_cluster", "--leash", "--folder", str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(kube.ROOT / "tools/cluster")}
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, (tmp_path / "thesis.txt").read_text()) == (1, "mine"), done.stderr


def test_a_cluster_is_used_only_while_it_is_given_to_tests(bare_control_plane: kube.Cluster) -> None:
    mark = ("configmap", kube.OWNED, "-n", "kube-system")
    bare_control_plane.kubectl("create", *mark)
    with kube.an_existing_cluster(bare_control_plane.kubeconfig) as cluster:
        assert "kube-system" in cluster.kubectl("get", "namespaces")
    bare_control_plane.kubectl("delete", *mark)
    with (
        pytest.raises(kube.NotOurs, match="not marked as theirs"),
        kube.an_existing_cluster(bare_control_plane.kubeconfig),
    ):
        pass
