"""The models that are served: the one that does nothing and the demo's, each with its documents, prepared once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from environments import CACHE, HERE
from traffic import COUNT, Traffic, of_scenario

from apparate.cli.planning import Served
from apparate.cli.serve import prepare_all
from apparate.contract.document import Document, load_documents
from apparate_demo.scenarios import SCENARIOS
from apparate_demo.scenarios.scenario import write

NOOP = "noop"
WIDTH = 16
BATCH = 8  # of every server that batches: the document's default
SEED = 0


@dataclass(frozen=True)
class Prepared:
    """A model ready to be served: by the worker from its document, by others from entrypoint and weights."""

    name: str
    file: Path
    entrypoint: str
    weights: Path
    inputs: tuple[str, ...]

    @property
    def document(self) -> Document:
        """The document."""
        return load_documents(self.file)[0]

    @property
    def folder(self) -> Path:
        """Where everything of it lies."""
        return self.file.parent


def prepare(name: str, tell: Callable[[str], None]) -> Prepared:
    """The model, prepared unless it is already."""
    tell(f"{name}: preparing (kept for the next run)")
    folder = CACHE / "models" / name
    model = _noop(folder) if name == NOOP else _scenario(name, folder)
    prepare_all([Served(model.file, model.document)])
    return model


def _scenario(name: str, folder: Path) -> Prepared:
    workspace = write(SCENARIOS[name], folder, None)
    model = workspace.document.model.spec.model
    names = tuple(one.name for one in model.inputs)
    return Prepared(name, workspace.document_path, str(model.entrypoint), workspace.document.source, names)


def _noop(folder: Path) -> Prepared:
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / "none.txt"
    if not weights.is_file():  # both are looked at by their content: the same ones are not prepared twice
        np.savez(folder / "bootstrap.npz", x=_points(256))
        weights.write_text("the model has no weights of its own\n")
    spec: dict[str, Any] = {
        "model": {
            "source": weights.name,
            "entrypoint": "identity:load",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [WIDTH]}],
        },
        "bootstrap": {"data": "bootstrap.npz"},
        "budget": {"rampOverhead": 0.5},
    }
    head = {"apiVersion": "apparate.dev/v1alpha1", "kind": "EarlyExitModel", "metadata": {"name": NOOP}}
    (folder / "model.yaml").write_text(yaml.safe_dump({**head, "spec": spec}, sort_keys=False))
    return Prepared(NOOP, folder / "model.yaml", "identity:load", weights, ("x",))


def _points(count: int) -> np.ndarray:
    return np.random.default_rng(SEED).normal(size=(count, WIDTH)).astype(np.float32)


class Bare:
    """The model in a loop without a server; knows what the model answers. A context manager."""

    name = "bare loop"

    def __init__(self, model: Prepared) -> None:
        inputs = {"x": _points(COUNT)} if model.name == NOOP else of_scenario(model.name, model.folder / "traffic.npz")
        file, scores = model.folder / "inputs.npz", model.folder / "scores.npy"
        np.savez(file, allow_pickle=False, **{name: inputs[name] for name in model.inputs})
        command = [model.entrypoint, str(model.weights), str(file), str(BATCH), str(scores)]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "bare.py"), *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()
        self.traffic = Traffic(model.name, inputs, np.load(scores))

    def _read(self) -> dict[str, Any]:
        import json

        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the bare loop ended, see above")
        found: dict[str, Any] = json.loads(line)
        return found

    def load(self, seconds: float) -> dict[str, float]:
        """Run so long; like the result of a load."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return self._read()

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
