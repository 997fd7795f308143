"""The Job's own command with its own account's rights, against a real API; then the worker it prepared for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import kube
from support.eventually import eventually
from support.operator import Hand, an_operator
from support.processes import a_process
from support.tiny import WIDTH, is_ready, write_tiny_model

pytestmark = [pytest.mark.cluster]


def tiny_body(folder: Path, source: str = "weights.safetensors") -> dict[str, Any]:
    return {
        "apiVersion": "apparate.dev/v1alpha1",
        "kind": "EarlyExitModel",
        "metadata": {"name": "tiny"},
        "spec": {
            "model": {
                "source": f"file://{folder}/{source}",
                "entrypoint": "tiny_network:load",
                "inputs": [{"name": "x", "datatype": "FP32", "shape": [WIDTH]}],
            },
            "bootstrap": {"data": f"file://{folder}/inputs.npz", "epochs": 5},
            "budget": {"accuracyLoss": 0.05, "rampOverhead": 0.5},
            "serving": {"maxBatch": 2, "device": "cpu", "backend": "eager"},
        },
    }


def run_job(hand: Hand, store: Path) -> subprocess.CompletedProcess[str]:
    """What the newest Job's container would run, as its ServiceAccount; the claim is a folder here."""
    jobs = eventually(lambda: hand.jobs("tiny"), within=30)
    (container,) = max(jobs, key=lambda job: job.metadata.creation_timestamp).spec.template.spec.containers
    rights = hand.cluster.kubeconfig_of(hand.namespace, "tiny-prepare")
    arguments = [f"--store={store}" if one.startswith("--store=") else one for one in container.command[1:]]
    command = [sys.executable, "-m", "apparate.cli", *arguments, f"--kubeconfig={rights}"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=110, check=False)


def test_a_model_goes_from_its_object_to_a_worker_that_answers(
    control_plane: kube.Cluster, namespace: str, crd: Any, tmp_path: Path
):
    hand, store = Hand(control_plane, namespace), tmp_path / "store"
    write_tiny_model(tmp_path / "model")
    with an_operator(control_plane, namespace):
        hand.create(tiny_body(tmp_path / "model"))
        done = run_job(hand, store)
        assert done.returncode == 0, done.stderr[-2000:]
        digest = json.loads(done.stdout.splitlines()[-1])["digest"]
        made = eventually(lambda: hand.deployment("tiny"), within=20)
        eventually(lambda: hand.get("tiny")["status"].get("catalog", {}).get("digest") == digest, within=10)
        (container,) = made.spec.template.spec.containers
        env = {one.name: one.value for one in container.env if one.value is not None}
        prepared = store / Path(env["EEM_WORKER_PREPARED"]).relative_to("/prepared")
        worker = {
            "EEM_WORKER_OBJECT": env["EEM_WORKER_OBJECT"],
            "EEM_WORKER_PREPARED": str(prepared),
            "EEM_WORKER_KUBECONFIG": str(control_plane.kubeconfig_of(namespace, "tiny-worker")),
            "EEM_WORKER_HTTP_PORT": "0",
            "EEM_WORKER_GRPC_PORT": "0",
        }
        with a_process([sys.executable, "-m", "apparate_worker"], worker) as process:
            eventually(lambda: process.out or process.popen.poll() is not None, within=60)
            assert process.out, process.err[-5:]
            address = json.loads(process.out[0])["http"]
            assert eventually(lambda: is_ready(address), within=20)


def test_a_source_that_is_not_there_ends_the_job_for_good_and_says_so(
    control_plane: kube.Cluster, namespace: str, crd: Any, tmp_path: Path
):
    hand = Hand(control_plane, namespace)
    with an_operator(control_plane, namespace):
        hand.create(tiny_body(tmp_path, source="nothing.pt"))
        done = run_job(hand, tmp_path / "store")
    assert done.returncode == 2
    assert "nothing.pt does not exist" in done.stderr
