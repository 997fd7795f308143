"""Small networks of the three shapes that are cut: a residual net, a chain with depthwise layers, an encoder."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import yaml
from safetensors.torch import save_file
from torch import Tensor, nn

from apparate.contract.document import Document, load_documents
from apparate.contract.resource import TensorSpec
from apparate_worker.model.cutting import Cut, cut
from apparate_worker.model.graph import Graph, sites, trace
from apparate_worker.model.segments import SegmentedModel, assemble
from apparate_worker.model.sources import NamedCall

CPU = torch.device("cpu")
IMAGE = TensorSpec(name="pixels", datatype="UINT8", shape=(16, 16, 3))
TOKENS = (
    TensorSpec(name="input_ids", datatype="INT64", shape=(-1,), max_size=64),
    TensorSpec(name="attention_mask", datatype="INT64", shape=(-1,), max_size=64),
)


class Block(nn.Module):
    def __init__(self, width: int, inplace: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)
        self.norm, self.relu = nn.BatchNorm2d(width), nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.b(self.relu(self.a(x)))) + x)


class Residual(nn.Module):
    """Stem, `blocks` residual blocks, pool, linear; with `grouped` two answers out of four classes."""

    def __init__(self, blocks: int = 4, classes: int = 4, *, grouped: bool = False, inplace: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*[Block(8, inplace) for _ in range(blocks)])
        self.head = nn.Linear(8, classes)
        self.grouped = grouped

    def forward(self, pixels: Tensor) -> Tensor:
        x = torch.relu(self.stem(pixels.permute(0, 3, 1, 2).float() / 255.0 - 0.5))
        scores: Tensor = self.head(self.blocks(x).mean((2, 3)))
        if not self.grouped:
            return scores
        scores = torch.log_softmax(scores, 1)
        return torch.stack([scores[:, :2].logsumexp(1), scores[:, 2:].logsumexp(1)], 1)


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 8, 3, 2, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU()]
            layers += [nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU6()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.layers(pixels.permute(0, 3, 1, 2).float() / 255.0)
        return found


class Single(nn.Module):
    """One layer: no ramp has a place."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16 * 16 * 3, 3)

    def forward(self, pixels: Tensor) -> Tensor:
        found: Tensor = self.head(pixels.float().flatten(1) / 255.0)
        return found


class Encoder(nn.Module):
    """Pre-norm encoder: only the sums after each half of a layer carry everything."""

    def __init__(self, layers: int = 3, hidden: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(50, hidden)
        self.attend = nn.ModuleList(nn.MultiheadAttention(hidden, 2, batch_first=True) for _ in range(layers))
        self.dense = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers))
        self.head = nn.Linear(hidden, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.table(input_ids)
        for attend, dense, norm in zip(self.attend, self.dense, self.norms, strict=True):
            y = norm(x)
            x = x + attend(y, y, y, key_padding_mask=attention_mask == 0, need_weights=False)[0]
            x = x + torch.tanh(dense(x))
        kept = attention_mask[:, :, None].to(x.dtype)
        found: Tensor = self.head((x * kept).sum(1) / kept.sum(1))
        return found


def seeded(model: nn.Module, *example: Tensor, seed: int = 0) -> nn.Module:
    """The model with seeded weights, its last layer centred on `example` so that answers vary; ready to serve."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point() and tensor.dim() > 1:
            tensor.normal_(0, 1.2 / float(np.sqrt(tensor[0].numel())), generator=generator)
    model.eval().requires_grad_(False)
    last = [layer for layer in model.modules() if isinstance(layer, nn.Linear)][-1]
    seen: list[Tensor] = []
    hook = last.register_forward_hook(lambda _, __, scores: seen.append(scores))
    model(*(example or (torch.from_numpy(pixels(64)),)))
    hook.remove()
    spread = seen[0].std(0)
    last.weight.div_(spread[:, None])
    last.bias.sub_(seen[0].mean(0)).div_(spread)
    return model


def pixels(count: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """[count, 16, 16, 3] pictures of different brightness and colour."""
    rng = np.random.default_rng(seed)
    colour = rng.integers(0, 256, (count, 1, 1, 3))
    return np.clip(colour + rng.normal(0, 30, (count, 16, 16, 3)), 0, 255).astype(np.uint8)


def example_tokens() -> tuple[Tensor, ...]:
    """Inputs of an encoder, by position."""
    return tuple(torch.from_numpy(values) for values in tokens(64, 9).values())


def tokens(count: int, length: int, seed: int = 0) -> dict[str, npt.NDArray[np.int64]]:
    """Token numbers and a mask with padding at the end of some items."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < rng.integers(1, length + 1, (count, 1))).astype(np.int64)
    mask[0] = 1
    return {"input_ids": rng.integers(1, 50, (count, length)) * mask, "attention_mask": mask}


def traced(model: nn.Module, specs: Sequence[TensorSpec], example: Mapping[str, npt.NDArray[Any]]) -> Graph:
    """The graph of a model called by position."""
    names = tuple(spec.name for spec in specs)
    call = NamedCall(model, names, "logits", by_name=False).eval()
    return trace(call, [torch.from_numpy(example[name]) for name in names], specs)


def in_pieces(graph: Graph, specs: Sequence[TensorSpec], mask: int | None = None) -> tuple[Cut, SegmentedModel]:
    """The graph cut at all its sites, as text and running."""
    text = cut(graph, sites(graph), [spec.name for spec in specs], mask)
    return text, assemble(text, {node.name: value for node, value in graph.constants.items()}, CPU)


CODE = """
from safetensors.torch import load_file
from support.nets import {kind}

def load(path):
    model = {kind}({arguments})
    model.load_state_dict(load_file(path))
    return model

def broken(path):
    raise RuntimeError("no luck today")

def not_a_model(path):
    return path
"""


def write_model(
    folder: Path,
    model: nn.Module,
    arrays: Mapping[str, npt.NDArray[Any]],
    specs: Sequence[TensorSpec],
    *,
    arguments: str = "",
    **spec: Any,
) -> Document:
    """Weights, code, bootstrap data and a document in `folder`, importable from now on; keywords go into the spec."""
    name = f"entry_{folder.name.replace('-', '_')}_{abs(hash(folder)) % 10**8}"
    (folder / f"{name}.py").write_text(CODE.format(kind=type(model).__name__, arguments=arguments))
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "weights.safetensors")
    np.savez(folder / "data.npz", **dict(arrays))
    content = {
        "apiVersion": "apparate.dev/v1alpha1",
        "kind": "EarlyExitModel",
        "metadata": {"name": "small"},
        "spec": {
            "model": {
                "source": "weights.safetensors",
                "entrypoint": f"{name}:load",
                "inputs": [one.model_dump(by_alias=True, mode="json") for one in specs],
            },
            "bootstrap": {"data": "data.npz", "epochs": 10},
            "serving": {"maxBatch": 2, "device": "cpu", "backend": "eager"},
        }
        | spec,
    }
    (folder / "model.yaml").write_text(yaml.safe_dump(content))
    return load_documents(folder / "model.yaml")[0]
