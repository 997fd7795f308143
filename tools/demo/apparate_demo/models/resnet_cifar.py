"""CIFAR-10 residual nets (20 to 110 layers), ten classes or vehicle against the rest.

Source of the weights: github.com/akamaster/pytorch_resnet_cifar10 (BSD-2-Clause), re-saved as safetensors.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

VEHICLES = (0, 1, 8, 9)  # airplane, automobile, ship, truck
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two 3x3 convolutions and a way around them; where the width grows the way around is subsampled and padded."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.grows = width - inner

    def forward(self, x: Tensor) -> Tensor:
        """[N, inner, H, W] -> [N, width, H/stride, W/stride]."""
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if self.grows:
            x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.grows // 2, self.grows // 2))
        return torch.relu(out + x)


class ResNet(nn.Module):
    """Call: pixels [N, 32, 32, 3] uint8 -> scores [N, 10]."""

    mean: Tensor
    std: Tensor
    layer1: nn.Module
    layer2: nn.Module
    layer3: nn.Module

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1), persistent=False)
        self.conv1 = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        inner = WIDTHS[0]
        for stage, width in enumerate(WIDTHS, 1):
            chain = [Block(inner if i == 0 else width, width, 2 if i == 0 and stage > 1 else 1) for i in range(blocks)]
            self.add_module(f"layer{stage}", nn.Sequential(*chain))
            inner = width
        self.linear = nn.Linear(WIDTHS[-1], 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """Scores [N, 10] of pictures [N, 32, 32, 3] uint8."""
        x = (pixels.permute(0, 3, 1, 2).float() / 255.0 - self.mean) / self.std
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        scores: Tensor = self.linear(x.mean((2, 3)))
        return scores


class TwoClass(nn.Module):
    """Any CIFAR-10 model as vehicle against the rest: log of the summed probabilities, [N, 2] (rest, vehicle)."""

    rest: Tensor
    vehicle: Tensor

    def __init__(self, ten: nn.Module) -> None:
        super().__init__()
        self.ten = ten
        groups = torch.ones(10, dtype=torch.int64)
        groups[list(VEHICLES)] = 0
        self.register_buffer("rest", groups.nonzero().flatten(), persistent=False)
        self.register_buffer("vehicle", (groups == 0).nonzero().flatten(), persistent=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """Log probabilities [N, 2] of pictures [N, 32, 32, 3] uint8."""
        scores = torch.log_softmax(self.ten(pixels), dim=1)
        parts = [torch.logsumexp(scores[:, group], dim=1) for group in (self.rest, self.vehicle)]
        return torch.stack(parts, dim=1)


def load(path: str | Path) -> nn.Module:
    """The ten-class model; its depth is read from the weights."""
    weights = load_file(str(path))
    blocks = len({name.split(".")[1] for name in weights if name.startswith("layer1.")})
    model = ResNet(blocks)
    model.load_state_dict(weights, strict=False)
    missing = {k for k in model.state_dict() if not k.endswith("num_batches_tracked")} - set(weights)
    if missing:
        raise ValueError(f"{path} has no {', '.join(sorted(missing)[:5])}")
    return model.eval()


def load_two_class(path: str | Path) -> nn.Module:
    """Vehicle against the rest, on the ten-class model."""
    return TwoClass(load(path)).eval()
