"""What every peer serves: the same network, called with the same arrays. Needs only numpy, and torch for real ones.

Torch is looked for in the folder that BENCH_TORCH names, behind the peer's own packages: one copy serves all.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]
DTYPES = {"FP32": np.float32, "INT64": np.int64, "UINT8": np.uint8}


class Noop:
    """Hands back its one input."""

    def __call__(self, batch: Arrays) -> npt.NDArray[Any]:
        """[N, 16] of [N, 16]."""
        return batch["x"]


class Real:
    """A network of the demo in torch, one thread, whole batches."""

    def __init__(self, entrypoint: str, weights: str, inputs: list[str]) -> None:
        sys.path.append(os.environ["BENCH_TORCH"])
        import importlib

        import torch

        torch.set_num_threads(1)
        self._torch, self._inputs = torch, inputs
        module, _, function = entrypoint.partition(":")
        self._network = getattr(importlib.import_module(module), function)(Path(weights)).eval()

    def __call__(self, batch: Arrays) -> npt.NDArray[Any]:
        """Scores [N, C]."""
        torch = self._torch
        torch.set_num_threads(1)  # a setting of the calling thread, and a server may call from another one
        with torch.inference_mode():
            scores: npt.NDArray[Any] = self._network(*[torch.from_numpy(batch[name]) for name in self._inputs]).numpy()
        return scores


def network() -> Noop | Real:
    """The network that BENCH_ENTRYPOINT names; without it the one that does nothing."""
    entrypoint = os.environ.get("BENCH_ENTRYPOINT", "")
    if not entrypoint:
        return Noop()
    return Real(entrypoint, os.environ["BENCH_WEIGHTS"], os.environ["BENCH_INPUTS"].split(","))


def tensor(one: dict[str, Any]) -> npt.NDArray[Any]:
    """An input of a v2 request as an array. BYTES is base64 of UINT8 pixels [1, 96, 96, 3]."""
    if one["datatype"] == "BYTES":
        return np.frombuffer(base64.b64decode(one["data"][0]), np.uint8).reshape(1, 96, 96, 3).copy()
    return np.array(one["data"], DTYPES[one["datatype"]]).reshape(one["shape"])


def decode(request: dict[str, Any]) -> Arrays:
    """The inputs of a v2 request."""
    return {one["name"]: tensor(one) for one in request["inputs"]}


def encode(scores: npt.NDArray[Any]) -> dict[str, Any]:
    """A v2 answer."""
    output = {"name": "logits", "datatype": "FP32", "shape": list(scores.shape), "data": scores.ravel().tolist()}
    return {"model_name": "model", "model_version": "1", "outputs": [output]}


def together(batch: list[Arrays]) -> Arrays:
    """One batch of several requests."""
    return {name: np.concatenate([one[name] for one in batch]) for name in batch[0]}
