"""What a cluster needs of the vision scenario: weights, bootstrap data, frames, and the plain model's answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from apparate_demo.oip import Traffic
from apparate_demo.scenarios.scenario import Materials
from apparate_demo.scenarios.vision import SCENARIO

SHARPER = 1.25
"""What all scores of the second model are multiplied with: its answers are the first one's, its scores are not."""
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Folder:
    """A folder of materials."""

    path: Path

    @property
    def model(self) -> Path:
        """The weights."""
        return self.path / "model.safetensors"

    @property
    def sharper(self) -> Path:
        """Weights of another model with the same answers."""
        return self.path / "sharper.safetensors"

    @property
    def damaged(self) -> Path:
        """Half of the weights' file, as a copy that was interrupted leaves it."""
        return self.path / "damaged.safetensors"

    @property
    def inputs(self) -> Path:
        """Unlabelled frames that ramps are trained on, as `spec.bootstrap.data` wants them."""
        return self.path / "inputs.npz"

    @property
    def traffic(self) -> Path:
        """Frames to send, in order."""
        return self.path / "traffic.npz"

    @property
    def plain(self) -> Path:
        """The plain model's answers to them."""
        return self.path / "plain.npy"

    def load(self) -> tuple[Traffic, Ints]:
        """Frames and the plain model's answers [N]."""
        labels: Ints = np.load(self.plain, allow_pickle=False)
        return Traffic.load(self.traffic), labels


def write(folder: Folder) -> int:
    """Write all of it, unless it is there already; the number of frames to send."""
    if not folder.plain.is_file():  # the last that is written
        _write(folder, SCENARIO.gather(None))
    return len(np.load(folder.plain, allow_pickle=False))


def _write(folder: Folder, materials: Materials) -> None:
    folder.path.mkdir(parents=True, exist_ok=True)
    weights = materials.weights.read_bytes()
    folder.model.write_bytes(weights)
    folder.damaged.write_bytes(weights[: len(weights) // 2])
    sharpen(folder.model, folder.sharper)
    np.savez(folder.inputs, allow_pickle=False, **materials.bootstrap)
    np.savez(folder.traffic, allow_pickle=False, **materials.traffic)
    fresh = folder.plain.with_suffix(".part.npy")
    np.save(fresh, np.fromiter(plain_labels(folder.model, materials.traffic["image"]), np.int64))
    fresh.rename(folder.plain)


def sharpen(weights: Path, target: Path) -> None:
    """The same network with its last layer multiplied by SHARPER."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(str(weights), "pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    last = max(i for i, op in enumerate(json.loads(metadata["ops"])) if op["op"] in ("fc", "conv"))
    for part in ("w", "b"):
        tensors[f"{last}.{part}"] = tensors[f"{last}.{part}"] * SHARPER
    save_file(tensors, str(target), metadata)


def plain_labels(weights: Path, frames: npt.NDArray[np.uint8]) -> Iterator[int]:
    """The model's own answer to each frame, one at a time as a worker without load has it."""
    import torch

    from apparate_demo.models.mobilenet import load

    torch.set_num_threads(1)
    model = load(weights)
    with torch.inference_mode():
        for frame in frames:
            yield int(model(torch.from_numpy(frame[None].copy())).argmax())
