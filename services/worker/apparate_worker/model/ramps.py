"""Ramps: a pooling step and one linear layer on the value at a site."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apparate_worker.model.segments import Source, compile_source

Pooling = Literal["mean", "grid", "mean_max", "mean_std", "first", "none"]
Floats = npt.NDArray[np.float32]

POOLINGS: dict[int, tuple[Pooling, ...]] = {
    4: ("mean", "mean_max", "mean_std", "grid"),
    3: ("mean", "mean_max", "first"),
    2: ("none",),
}
"""Poolings that suit a site of so many dimensions, the cheapest first."""

# TorchScript of each pooling by the dimensions of its site; `mask` is [N, L] float, 1 for a token.
_POOL: dict[tuple[int, Pooling, bool], str] = {
    (4, "mean", False): "x.mean([2, 3])",
    (4, "mean_max", False): "torch.cat([x.mean([2, 3]), x.amax([2, 3])], 1)",
    (4, "mean_std", False): "torch.cat([x.mean([2, 3]), x.std([2, 3], correction=0)], 1)",
    (4, "grid", False): "torch.nn.functional.adaptive_avg_pool2d(x, [2, 2]).flatten(1)",
    (3, "mean", False): "x.mean(1)",
    (3, "mean_max", False): "torch.cat([x.mean(1), x.amax(1)], 1)",
    (3, "first", False): "x[:, 0]",
    (3, "mean", True): "torch.matmul(mask.unsqueeze(1), x).squeeze(1) / mask.sum(1, True).clamp(1.0)",
    (3, "mean_max", True): (
        "torch.cat([torch.matmul(mask.unsqueeze(1), x).squeeze(1) / mask.sum(1, True).clamp(1.0), "
        "x.masked_fill(mask.unsqueeze(2) == 0.0, -1e4).amax(1)], 1)"
    ),
    (3, "first", True): "x[:, 0]",
    (2, "none", False): "x",
}


@dataclass(frozen=True)
class RampShape:
    """What a ramp computes, without its numbers."""

    dimensions: int
    pooling: Pooling
    masked: bool = False
    """Whether pooling skips padding; only sites [N, L, C] can."""


class RampHead:
    """One ramp of a prepared model.

    weight [C, F], bias [C]: logits = (pooled @ weight.T + bias) / temperature; the error score is 1 - max softmax.
    """

    def __init__(self, shape: RampShape, weight: Tensor, bias: Tensor, temperature: float) -> None:
        self.shape = shape
        self.temperature = temperature
        self._weight, self._bias = weight.detach().float(), bias.detach().float()
        constants = {"weight": self._weight / temperature, "bias": self._bias / temperature}
        self._scaled = (constants["weight"], constants["bias"])
        pool = pooling_code(shape)
        names = ("weight", "bias")
        device = weight.device
        self._pool = compile_source(Source(f"{pool}    return pooled\n", ()), {}, device)
        ending = (
            "    logits = torch.nn.functional.linear(pooled, self.weight, self.bias)\n"
            "    best, labels = torch.softmax(logits, 1).max(1)\n"
            "    return (pooled, 1.0 - best, labels)\n"
        )
        self._answer = compile_source(Source(pool + ending, names), constants, device)

    def pool(self, activation: Tensor, mask: Tensor | None) -> Tensor:
        """[N, F] of the value at the site; mask [N, L] where the model has one."""
        pooled: Tensor = self._pool(activation, mask)
        return pooled

    def logits(self, pooled: Tensor) -> Tensor:
        """[N, C], already divided by the temperature."""
        return torch.nn.functional.linear(pooled, *self._scaled)

    def answer(self, activation: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """(pooled [N, F], error scores [N] float32, labels [N] int64) in one call: what the request path uses."""
        found: tuple[Tensor, Tensor, Tensor] = self._answer(activation, mask)
        return found

    def numpy(self) -> tuple[Floats, Floats, float]:
        """(weight [C, F], bias [C], temperature): the same numbers for evaluation off the request path."""
        return self._weight.cpu().numpy(), self._bias.cpu().numpy(), self.temperature


def pooling_code(shape: RampShape) -> str:
    """TorchScript that takes x and mask and leaves `pooled`."""
    masked = shape.masked and shape.dimensions == 3
    body = _POOL[(shape.dimensions, shape.pooling, masked)]
    lines = ["def forward(self, x: Tensor, raw: Optional[Tensor]):"]
    if masked:
        lines += ["    assert raw is not None", "    mask = raw.to(x.dtype)"]
    return "\n".join([*lines, f"    pooled = ({body}).float()", ""])


def describe(head: RampHead) -> dict[str, Any]:
    """The ramp's shape as plain data, for the catalog."""
    shape = head.shape
    return {
        "pooling": shape.pooling,
        "dimensions": shape.dimensions,
        "masked": shape.masked,
        "temperature": head.temperature,
    }
