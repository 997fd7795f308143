"""A model that prepares and answers in moments: three clouds of points, and a network that names them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

WIDTH = 768  # a layer takes long enough that a ramp before it saves something
CODE = f"""
from pathlib import Path

import torch
from safetensors.torch import load_file


def network():
    layers = []
    for _ in range(4):
        layers += [torch.nn.Linear({WIDTH}, {WIDTH}), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear({WIDTH}, 3))


def load(path: Path):
    model = network()
    model.load_state_dict(load_file(path))
    return model
"""
DOCUMENT = """
apiVersion: apparate.dev/v1alpha1
kind: EarlyExitModel
metadata: {{name: {name}}}
spec:
  model:
    source: weights.safetensors
    entrypoint: tiny_network:load
    inputs: [{{name: x, datatype: FP32, shape: [{width}]}}]
    classes: [red, green, blue]
  bootstrap: {{data: inputs.npz, epochs: 10}}
  budget: {{accuracyLoss: 0.05, rampOverhead: 0.5}}
  adaptation: {{window: 512}}
  serving:
    replicas: {replicas}
    maxBatch: 4
    drainSeconds: 10
    device: cpu
    backend: eager # what it would take to choose is longer than what the tests wait for
    protocols: {{http: {{port: 0}}, grpc: {{port: 0}}}}
"""
WRITE = """
import torch
from safetensors.torch import save_file
from tiny_network import network

torch.manual_seed(0)
model = network()
for layer in model:
    if isinstance(layer, torch.nn.Linear):
        torch.nn.init.orthogonal_(layer.weight, 1.3)
save_file(model.state_dict(), "weights.safetensors")
"""


def points(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """[count, WIDTH] points of three clouds far apart, in random order."""
    centres = np.random.default_rng(7).normal(size=(3, WIDTH))
    rng = np.random.default_rng(seed)
    return (3 * centres[rng.integers(0, 3, count)] + rng.normal(size=(count, WIDTH))).astype(np.float32)


def write_tiny_model(folder: Path, *, name: str = "tiny", replicas: int = 1) -> Path:
    """Write code, weights, data and document into `folder`; the document's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tiny_network.py").write_text(CODE)
    subprocess.run([sys.executable, "-c", WRITE], cwd=folder, check=True)
    np.savez(folder / "inputs.npz", x=points(600, seed=1))
    return write_document(folder, name=name, replicas=replicas)


def write_document(folder: Path, *, name: str = "tiny", replicas: int = 1) -> Path:
    """Write a document with other settings for the model in `folder`."""
    document = folder / f"{name}-{replicas}.yaml"
    document.write_text(DOCUMENT.format(name=name, replicas=replicas, width=WIDTH))
    return document


def prepare(document: Path) -> None:
    """Train and profile its ramps, as `apparate prepare` does."""
    done = subprocess.run(
        [sys.executable, "-m", "apparate.cli", "prepare", "-f", str(document)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def ask(address: str, x: npt.NDArray[np.float32], *, name: str = "tiny", timeout: float = 20) -> dict[str, Any]:
    """One request of the rows of `x` on a connection of its own; the parsed answer."""
    body = {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.ravel().tolist()}]}
    request = urllib.request.Request(
        f"http://{address}/v2/models/{name}/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Connection": "close"},
    )
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)  # type: ignore[no-any-return]


def is_ready(address: str) -> bool:
    """Whether a worker says that it takes requests, as a load balancer asks."""
    try:
        with urllib.request.urlopen(f"http://{address}/v2/health/ready", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


class Load:
    """A few clients behind a load balancer: each asks one after the other, of the workers that say they are ready.

    A request that no worker has accepted (no listener, 503) goes to another worker; one that breaks off is lost.
    """

    def __init__(self, addresses: Callable[[], list[str]], *, clients: int = 2, patience: float = 20) -> None:
        self.counts: Counter[str] = Counter()
        self.lost: list[str] = []
        self._addresses = addresses
        self._ready: list[str] = []
        self._patience = patience
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(seed,), daemon=True) for seed in range(clients)]
        self._threads.append(threading.Thread(target=self._watch, daemon=True))

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)

    @property
    def answered(self) -> int:
        return self.counts["answered"]

    def _watch(self) -> None:
        while not self._stop.is_set():
            self._ready = [one for one in self._addresses() if is_ready(one)]
            self._stop.wait(0.03)

    def _client(self, seed: int) -> None:
        x = points(64, seed)
        turn = seed
        while not self._stop.wait(0.003):  # leaves some of the machine to workers that start
            self._one(x[turn % 64 : turn % 64 + 1], turn)
            turn += 1

    def _one(self, x: npt.NDArray[np.float32], turn: int) -> None:
        deadline = time.monotonic() + self._patience
        while time.monotonic() < deadline:
            ready = self._ready
            if ready:
                try:
                    ask(ready[turn % len(ready)], x)
                except urllib.error.HTTPError as error:
                    error.close()
                    if error.code != 503:
                        return self.lost.append(f"status {error.code}")
                except urllib.error.URLError as error:
                    if not isinstance(error.reason, ConnectionRefusedError):
                        return self.lost.append(repr(error.reason))
                except OSError as error:
                    return self.lost.append(repr(error))
                else:
                    self.counts["answered"] += 1
                    return None
                self.counts["not accepted"] += 1
                turn += 1
            if self._stop.wait(0.02):
                return None
        return self.lost.append(f"no worker took it within {self._patience} s")
