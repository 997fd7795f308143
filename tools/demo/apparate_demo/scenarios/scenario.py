"""A scenario and the work folder it is written into."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from apparate.contract.document import Document, load_documents

Arrays = Mapping[str, npt.NDArray[Any]]
LENGTHS = "lengths"  # name of the array that says how much of each padded row is real

FORMAT = 2  # of the work folder; another number writes it anew


@dataclass(frozen=True)
class Materials:
    """What a scenario is made of once its data is read."""

    weights: Path
    bootstrap: Arrays
    """Array [M, ...] for each input of the model: unlabelled, and no part of the traffic."""
    traffic: Arrays
    """Array [N, ...] for each input, in the order of serving; rows may be padded, then `lengths` [N] is there too."""
    note: str
    """One sentence on what the traffic is and what the ramps were trained on."""


@dataclass(frozen=True)
class Scenario:
    """A model and its traffic; `gather(data)` reads the materials, from a path of the user's or from the assets."""

    name: str
    title: str
    model: Mapping[str, Any]
    """The document's spec.model, without source."""
    gather: Callable[[Path | None], Materials]
    spec: Mapping[str, Any]
    """What else the document says."""
    seconds: float = 120.0
    """Of traffic, unless the user says: slower models need longer for the same number of records."""


@dataclass(frozen=True)
class Workspace:
    """A scenario written into a folder: the documents to serve, and the traffic."""

    folder: Path
    note: str

    @property
    def document_path(self) -> Path:
        """The document that is served with exits."""
        return self.folder / "model.yaml"

    @property
    def plain_path(self) -> Path:
        """The same document under another name with the policy `never`."""
        return self.folder / "plain.yaml"

    @property
    def traffic_path(self) -> Path:
        """The .npz of inputs in order."""
        return self.folder / "traffic.npz"

    @property
    def document(self) -> Document:
        """The document that is served with exits."""
        return load_documents(self.document_path)[0]

    @property
    def plain(self) -> Document:
        """The document of the plain model."""
        return load_documents(self.plain_path)[0]


def default_workdir(name: str) -> Path:
    """Where a scenario is kept between runs."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "apparate" / "demo" / name


def documents(scenario: Scenario, weights: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The document with exits and the plain one, as plain data; paths are relative to the work folder."""

    def one(name: str, adaptation: Mapping[str, Any]) -> dict[str, Any]:
        spec = {
            "model": {"source": weights, **scenario.model},
            "bootstrap": {"data": "bootstrap.npz", **scenario.spec.get("bootstrap", {})},
            "budget": dict(scenario.spec.get("budget", {})),
            "serving": dict(scenario.spec.get("serving", {})),
            "adaptation": dict(adaptation),
        }
        return {
            "apiVersion": "apparate.dev/v1alpha1",
            "kind": "EarlyExitModel",
            "metadata": {"name": name},
            "spec": spec,
        }

    adaptation = dict(scenario.spec.get("adaptation", {}))
    return one(scenario.name, adaptation), one(f"{scenario.name}-plain", {**adaptation, "policy": "never"})


def write(scenario: Scenario, folder: Path, data: Path | None) -> Workspace:
    """The scenario in `folder`, written only when it is not there yet for the same data. Raises InvalidData."""
    stamp, marker = _stamp(scenario, data), folder / "workspace.json"
    if marker.is_file():
        found = json.loads(marker.read_text())
        if found.get("stamp") == stamp:
            return Workspace(folder, str(found["note"]))
    materials = scenario.gather(data)
    folder.mkdir(parents=True, exist_ok=True)
    marker.unlink(missing_ok=True)
    for name, arrays in (("bootstrap.npz", materials.bootstrap), ("traffic.npz", materials.traffic)):
        np.savez(folder / name, allow_pickle=False, **arrays)
    # Its own copy: what is kept between runs must outlast the checkout that it was made from.
    shutil.copyfile(materials.weights, folder / materials.weights.name)
    exits, plain = documents(scenario, materials.weights.name)
    (folder / "model.yaml").write_text(yaml.safe_dump(exits, sort_keys=False))
    (folder / "plain.yaml").write_text(yaml.safe_dump(plain, sort_keys=False))
    marker.write_text(json.dumps({"stamp": stamp, "note": materials.note}))  # last: a half-written folder has none
    return Workspace(folder, materials.note)


def _stamp(scenario: Scenario, data: Path | None) -> str:
    parts: list[Any] = [FORMAT, scenario.name, scenario.model, scenario.spec]
    if data is not None:
        files = sorted(data.iterdir()) if data.is_dir() else [data]
        parts += [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.is_file()]
    return json.dumps(parts, default=dict)
