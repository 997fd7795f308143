"""A traced model as text: TorchScript for each segment, over the very operators that were traced.

Text because it can be stored beside the weights, compared and read, and because TorchScript can call nothing but
torch operators: a stored model cannot reach files or the network.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.graph import Graph, head

DEVICE = "$device"  # stands for the device in stored sources
INFIX = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.mod: "%",
}


@dataclass(frozen=True)
class Source:
    """One segment as text: TorchScript, the constants it reads, and which of the pass's side values it takes."""

    code: str
    constants: tuple[str, ...]
    sides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cut:
    """A model as text: how the side values come from the inputs, then a segment up to each site and one to the end."""

    inputs: tuple[str, ...]
    prologue: Source | None
    segments: tuple[Source, ...]
    mask: int | None = None
    """Which input is the mask of the sequence, if any."""
    tail: Source | None = None
    """What the model does after its last layer, if more than a softmax; ramps end the same way."""
    to_head: Source | None = None
    """From the last site to the last layer's own scores; only training needs it."""


def cut(graph: Graph, at: Sequence[fx.Node], names: Sequence[str], mask: int | None) -> Cut:
    """The text of a model cut at the given sites; `names` are what callers call the inputs. Raises UnsupportedModel."""
    flow = list(graph.flow)
    ends = [flow.index(site) for site in at] + [len(flow) - 1]
    parts, begin = [], 0
    for end in ends:
        parts.append(flow[begin : end + 1])
        begin = end + 1
    outside = set(graph.nodes) - graph.data
    sides = [n for n in (*graph.inputs[1:], *graph.nodes) if n in outside or n in graph.inputs[1:]]
    sides = [n for n in sides if any(u in graph.data for u in n.users)]
    segments, entry = [], graph.inputs[0]
    for part in parts:
        segments.append(_segment(entry, part, sides, graph))
        entry = part[-1]
    prologue = None
    if sides:
        steps = [n for n in graph.nodes if n in outside]
        prologue = _source([(n, "Tensor") for n in graph.inputs], steps, sides, graph, (), always_tuple=True)
    tail, to_head = None, None
    layer = head(graph)
    if layer is not None and layer in parts[-1]:
        middle = parts[-1].index(layer) + 1
        to_head = _segment(at[-1], parts[-1][:middle], sides, graph)
        tail = _segment(layer, parts[-1][middle:], (), graph)
    return Cut(tuple(names), prologue, tuple(segments), mask, tail, to_head)


def _segment(entry: fx.Node, part: Sequence[fx.Node], sides: Sequence[fx.Node], graph: Graph) -> Source:
    """The text from the value of `entry` to the value of the part's last node."""
    read = {p for n in part for p in n.all_input_nodes}
    taken = tuple(i for i, n in enumerate(sides) if n in read)
    arguments = [(entry, "Tensor"), *((sides[i], _type(sides[i])) for i in taken)]
    return _source(arguments, part, [part[-1]], graph, taken)


def _type(node: fx.Node) -> str:
    value = node.meta.get("val")
    for kind, name in ((Tensor, "Tensor"), ((bool, torch.SymBool), "bool"), ((int, torch.SymInt), "int")):
        if isinstance(value, kind):
            return name
    return "float"


def _source(
    arguments: Sequence[tuple[fx.Node, str]],
    steps: Sequence[fx.Node],
    results: Sequence[fx.Node],
    graph: Graph,
    sides: tuple[int, ...],
    always_tuple: bool = False,
) -> Source:
    read = {p for n in steps for p in n.all_input_nodes} | set(results)
    constants = [n for n in graph.constants if n in read]
    lines = [f"def forward(self, {', '.join(f'v_{n.name}: {kind}' for n, kind in arguments)}):"]
    for node in steps:
        if node.users or node in results:
            lines.append(f"    v_{node.name} = {_expression(node, graph)}")
    names = [_text(n, graph) for n in results]
    lines.append(f"    return ({', '.join(names)},)" if always_tuple else f"    return {names[0]}")
    return Source("\n".join(lines) + "\n", tuple(n.name for n in constants), sides)


def _expression(node: fx.Node, graph: Graph) -> str:
    target = node.target
    arguments = [_text(a, graph) for a in node.args]
    if isinstance(target, torch._ops.OpOverload):
        keywords = [f"{k}={_text(v, graph)}" for k, v in node.kwargs.items()]
        space, name = target._schema.name.split("::")
        if name == "sym_size":
            return f"{arguments[0]}.size({arguments[1]})"
        named = [_optional_tensors(a, t) for a, t in zip(arguments, target._schema.arguments, strict=False)]
        return f"torch.ops.{space}.{name}({', '.join(named + keywords)})"
    if target is operator.getitem:
        return f"{arguments[0]}[{arguments[1]}]"
    if target in INFIX:
        return f"({arguments[0]} {INFIX[target]} {arguments[1]})"
    raise UnsupportedModel(f"the model uses {getattr(target, '__name__', target)}, which cannot be cut yet")


def _optional_tensors(text: str, argument: Any) -> str:
    if text.startswith("[") and str(argument.type) == "List[Optional[Tensor]]":
        return f"torch.jit.annotate(List[Optional[Tensor]], {text})"
    return text


def _text(value: Any, graph: Graph) -> str:
    """A literal of TorchScript."""
    if isinstance(value, fx.Node):
        return f"self.{value.name}" if value in graph.constants else f"v_{value.name}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(v, graph) for v in value)}]"
    if isinstance(value, bool | int | str) or value is None:
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{DEVICE}")'
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return str(value)
    raise UnsupportedModel(f"the model's graph holds {value!r}, a {type(value).__name__}, which cannot be cut yet")


def keep(model: Cut, sites: Sequence[int]) -> Cut:
    """The same model cut only at some of its sites: segments between them become one. `sites` rise."""
    ends = [*sites, len(model.segments) - 1]
    segments, begin = [], 0
    for end in ends:
        segments.append(_joined(model.segments[begin : end + 1]))
        begin = end + 1
    return replace(model, segments=tuple(segments), to_head=None)


def _joined(parts: Sequence[Source]) -> Source:
    """Segments one after the other: each takes, by name, what the one before it returns."""
    arguments: dict[str, int | None] = {}
    lines: list[str] = []
    for i, part in enumerate(parts):
        first, *body, last = part.code.rstrip("\n").split("\n")
        entry, *sides = first.removeprefix("def forward(self, ").removesuffix("):").split(", ")
        arguments |= {entry: None} if i == 0 else {}
        arguments |= dict(zip(sides, part.sides, strict=True))
        lines += body
    signature = f"def forward(self, {', '.join(arguments)}):"
    constants = tuple(dict.fromkeys(name for part in parts for name in part.constants))
    taken = tuple(i for i in arguments.values() if i is not None)
    return Source("\n".join([signature, *lines, last, ""]), constants, taken)
