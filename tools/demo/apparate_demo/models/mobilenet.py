"""Person or no person on 96x96 pictures: MobileNetV1 0.25, a plain chain of layers.

The layers are listed in the weights file itself (metadata `ops`), so this is a reader of such files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor, nn


class ShiftedPad(nn.Module):
    """Zero padding of one pixel at the right and at the bottom: "same" padding of a 3x3 layer with stride 2."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H+1, W+1]."""
        return nn.functional.pad(x, (0, 1, 0, 1))


class ChainedCnn(nn.Module):
    """A chain of convolution layers over uint8 pictures. Call: pixels [N, H, W, 3] uint8 -> scores [N, classes]."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores [N, classes] of pictures [N, H, W, 3] uint8."""
        x = pixels.permute(0, 3, 1, 2).float() / 255.0
        scores: Tensor = self.layers(x)
        return scores


def load(path: str | Path) -> nn.Module:
    """The model from a safetensors file with `ops` in its metadata. Raises ValueError for a layer it cannot build."""
    with safe_open(str(path), "pt") as file:
        ops = json.loads((file.metadata() or {}).get("ops", "[]"))
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    if not ops:
        raise ValueError(f"{path} has no list of layers (metadata ops)")
    layers: list[nn.Module] = []
    for index, op in enumerate(ops):
        mine = {name.split(".")[1]: value for name, value in weights.items() if name.split(".")[0] == str(index)}
        layers += _layers(op, mine)
    return ChainedCnn(nn.Sequential(*layers)).eval()


def _layers(op: dict[str, Any], weights: dict[str, Tensor]) -> list[nn.Module]:
    kind = op["op"]
    if kind in ("conv", "dw"):
        return _convolution(weights["w"], weights["b"], stride=op["stride"], groups=len(weights["w"]) * (kind == "dw"))
    if kind == "bn":
        norm = nn.BatchNorm2d(len(weights["gamma"]), eps=op["eps"])
        names = {"weight": "gamma", "bias": "beta", "running_mean": "mean", "running_var": "var"}
        norm.load_state_dict({ours: weights[theirs] for ours, theirs in names.items()}, strict=False)
        return [norm]
    if kind == "fc":
        linear = nn.Linear(weights["w"].shape[1], weights["w"].shape[0])
        linear.load_state_dict({"weight": weights["w"], "bias": weights["b"]})
        return [linear]
    plain: dict[str, Callable[[], nn.Module]] = {
        "act": nn.ReLU,
        "pool": lambda: nn.AdaptiveAvgPool2d(1),
        "Flatten": nn.Flatten,
    }
    if kind not in plain:
        raise ValueError(f"layer kind is {kind!r}, known are conv, dw, bn, fc, {', '.join(plain)}")
    return [plain[kind]()]


def _convolution(weight: Tensor, bias: Tensor, *, stride: int, groups: int) -> list[nn.Module]:
    size = weight.shape[-1]
    centred = size // 2 if stride == 1 else 0
    conv = nn.Conv2d(
        weight.shape[1] * max(groups, 1), len(weight), size, stride, padding=centred, groups=max(groups, 1)
    )
    conv.load_state_dict({"weight": weight, "bias": bias})
    return [conv] if stride == 1 or size == 1 else [ShiftedPad(), conv]
