"""Ramps: a pooling step and one linear layer on the value at a site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apparate_worker.model.cutting import Source
from apparate_worker.model.segments import Run, compile_source

Pooling = Literal["mean", "moments", "grid2", "grid4", "mean_max", "first", "none"]
Floats = npt.NDArray[np.float32]

POOLINGS: dict[int, tuple[Pooling, ...]] = {
    4: ("mean", "moments", "grid2", "grid4"),
    3: ("mean", "mean_max", "first"),
    2: ("none",),
}
"""Poolings that suit a site of so many dimensions, the cheapest first."""

# TorchScript of each pooling by the dimensions of its site; `mask` is [N, L] float, 1 for a token.
_POOL: dict[tuple[int, Pooling, bool], str] = {
    (4, "mean", False): "x.mean([2, 3])",
    (4, "moments", False): "torch.cat([x.mean([2, 3]), (x * x).mean([2, 3])], 1)",
    (4, "grid2", False): "torch.ops.aten.adaptive_avg_pool2d(x, [2, 2]).flatten(1)",
    (4, "grid4", False): "torch.ops.aten.adaptive_avg_pool2d(x, [4, 4]).flatten(1)",
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


@dataclass(frozen=True, eq=False)
class Tail:
    """What a model does after its last layer, on its device and on the host: scores [N, H] -> scores [N, C]."""

    run: Run
    on_host: Run

    @classmethod
    def of(cls, source: Source, constants: Mapping[str, Tensor], device: torch.device) -> Tail:
        """The tail from its text. Raises UnsupportedModel."""
        host = {name: constants[name].cpu() for name in source.constants}
        return cls(compile_source(source, constants, device), compile_source(source, host, torch.device("cpu")))


class RampHead:
    """One ramp of a prepared model: pooled value -> linear layer -> the model's own tail, if it has one.

    scores = tail(pooled @ weight.T + bias); logits = scores / temperature; the error score is 1 - max softmax of them.
    weight [H, F], bias [H]; H is the number of classes C, or with a tail what the tail takes.
    """

    def __init__(
        self, shape: RampShape, weight: Tensor, bias: Tensor, temperature: float, tail: Tail | None = None
    ) -> None:
        self.shape = shape
        self.temperature = temperature
        self._weight, self._bias, self._tail = weight.detach().float(), bias.detach().float(), tail
        scale = temperature if tail is None else 1.0
        self._scaled = (self._weight / scale, self._bias / scale)
        self._pool = compile_source(Source(pooling_code(shape), ()), {}, weight.device)
        constants = dict(zip(("weight", "bias"), self._scaled, strict=True))
        self._fused = compile_source(Source(_fused_code(shape), ("weight", "bias")), constants, weight.device)

    def pool(self, activation: Tensor, mask: Tensor | None) -> Tensor:
        """[N, F] of the value at the site; mask [N, L] where the model has one."""
        pooled: Tensor = self._pool(activation, mask)
        return pooled

    def logits(self, pooled: Tensor) -> Tensor:
        """[N, C], already divided by the temperature."""
        return self.finish(torch.nn.functional.linear(pooled, *self._scaled))

    def answer(self, activation: Tensor, mask: Tensor | None) -> Tensor:
        """[N, C] as `logits(pool(...))`, in one call: beside a segment's work the calls cost more than the sums."""
        return self.finish(self._fused(activation, mask))

    def on_host(self) -> Callable[[Floats], Floats]:
        """The same on numpy arrays, for evaluation off the request path: pooled [N, F] -> logits [N, C]."""
        weight, bias = self.linear()
        across = np.ascontiguousarray(weight.T)
        if self._tail is None:
            return lambda pooled: np.asarray(pooled @ across + bias, np.float32)
        tail, temperature = self._tail.on_host, self.temperature

        def logits(pooled: Floats) -> Floats:
            with torch.inference_mode():
                scores: Tensor = tail(torch.from_numpy(np.asarray(pooled @ across + bias, np.float32)))
                found: Floats = (scores / temperature).numpy()
                return found

        return logits

    def linear(self) -> tuple[Floats, Floats]:
        """(weight [H, F], bias [H]) as they are run: divided by the temperature, unless a tail comes before that."""
        weight, bias = (value.cpu().numpy() for value in self._scaled)
        return weight, bias

    def finish(self, scores: Tensor) -> Tensor:
        """[N, C] of scores [N, H]: what comes after the linear layer."""
        if self._tail is None:
            return scores
        found: Tensor = self._tail.run(scores) / self.temperature
        return found

    def numpy(self) -> tuple[Floats, Floats, float]:
        """(weight [H, F], bias [H], temperature): the ramp's own numbers."""
        return self._weight.cpu().numpy(), self._bias.cpu().numpy(), self.temperature


def pooling_code(shape: RampShape) -> str:
    """TorchScript of the pooling step: the value at the site and the mask -> [N, F]."""
    return "\n".join([*_pooled_lines(shape), "    return pooled", ""])


def _fused_code(shape: RampShape) -> str:
    return "\n".join(
        [*_pooled_lines(shape), "    return torch.nn.functional.linear(pooled, self.weight, self.bias)", ""]
    )


def _pooled_lines(shape: RampShape) -> list[str]:
    masked = shape.masked and shape.dimensions == 3
    body = _POOL[(shape.dimensions, shape.pooling, masked)]
    lines = ["def forward(self, x: Tensor, raw: Optional[Tensor]):"]
    if masked:
        lines += ["    assert raw is not None", "    mask = raw.to(x.dtype)"]
    return [*lines, f"    pooled = ({body}).float()"]


def describe(head: RampHead) -> dict[str, Any]:
    """The ramp's shape as plain data, for the catalog."""
    shape = head.shape
    return {
        "pooling": shape.pooling,
        "dimensions": shape.dimensions,
        "masked": shape.masked,
        "temperature": head.temperature,
    }
