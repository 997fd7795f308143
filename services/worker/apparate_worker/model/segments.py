"""A model cut at its sites: segments that, run in order, do exactly what the model does.

Each segment is written as TorchScript over the very operators that were traced, so that one call runs a whole segment
without Python, and without the interpreter's lock: the event loop goes on meanwhile.
"""

from __future__ import annotations

import math
import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, fx

from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.graph import Graph

DEVICE = "$device"  # stands for the device in stored sources
Run = Callable[..., Any]
INFIX = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.floordiv: "//",
    operator.mod: "%",
}
NAMES = {"torch": torch, "Tensor": Tensor, "List": typing.List, "Optional": typing.Optional}  # noqa: UP006


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


@dataclass(slots=True)
class State:
    """Where a pass stands: the value at the last site, what goes around it, and the mask."""

    value: Tensor
    sides: tuple[Any, ...]
    mask: Tensor | None


@dataclass(frozen=True, eq=False)
class SegmentedModel:
    """R+1 segments. `start`, then `advance` 0..R in order; after `advance(r)` the state sits at site r.

    One state belongs to one pass; `advance` changes it in place and returns it.
    """

    inputs: tuple[str, ...]
    segments: tuple[Run, ...]
    prologue: Run | None = None
    mask_input: str | None = None
    sides: tuple[tuple[int, ...], ...] = field(default=())
    """Which side values each segment takes."""

    def start(self, inputs: Mapping[str, Tensor]) -> State:
        """The state before the first segment. Raises KeyError for a missing input."""
        given = [inputs[name] for name in self.inputs]
        sides = self.prologue(*given) if self.prologue is not None else ()
        return State(given[0], sides, inputs[self.mask_input] if self.mask_input is not None else None)

    def advance(self, k: int, state: State) -> State:
        """Run segment k (0..R)."""
        sides = state.sides
        if sides:
            state.value = self.segments[k](state.value, *[sides[i] for i in self.sides[k]])
        else:
            state.value = self.segments[k](state.value)
        return state

    def site(self, state: State) -> Tensor:
        """The activation at the site the state sits at: [N, C, H, W], [N, L, C] or [N, C]."""
        return state.value

    def mask(self, state: State) -> Tensor | None:
        """[N, L] 1 for a token and 0 for padding; None when the model has no such input."""
        return state.mask

    def output(self, state: State) -> Tensor:
        """Scores [N, C], once the last segment has run."""
        return state.value

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Scores [N, C] of a whole pass."""
        state = self.start(inputs)
        for k in range(len(self.segments)):
            self.advance(k, state)
        return state.value


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
        read = {p for n in part for p in n.all_input_nodes}
        taken = [i for i, n in enumerate(sides) if n in read]
        arguments = [(entry, "Tensor"), *((sides[i], _type(sides[i])) for i in taken)]
        segments.append(_source(arguments, part, [part[-1]], graph, tuple(taken)))
        entry = part[-1]
    prologue = None
    if sides:
        steps = [n for n in graph.nodes if n in outside]
        prologue = _source([(n, "Tensor") for n in graph.inputs], steps, sides, graph, (), always_tuple=True)
    return Cut(tuple(names), prologue, tuple(segments), mask)


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


def assemble(model: Cut, constants: Mapping[str, Tensor], device: torch.device) -> SegmentedModel:
    """The running model of its text, with `constants` already on `device`. Raises UnsupportedModel."""
    return SegmentedModel(
        inputs=model.inputs,
        segments=tuple(compile_source(s, constants, device) for s in model.segments),
        prologue=compile_source(model.prologue, constants, device) if model.prologue is not None else None,
        mask_input=model.inputs[model.mask] if model.mask is not None else None,
        sides=tuple(s.sides for s in model.segments),
    )


def compile_source(source: Source, constants: Mapping[str, Tensor], device: torch.device) -> Run:
    """The one place that makes a segment's text run. Raises UnsupportedModel with the compiler's words.

    TorchScript can call nothing but torch operators, so a stored text cannot reach files or the network.
    """
    if device.type != "cpu":
        torch._C._jit_set_texpr_fuser_enabled(False)  # fusion would compile again for every new batch size
    module: Any = cast(Any, torch._C.ScriptModule)("Segment", torch._C.CompilationUnit(), True)
    for name in source.constants:
        module._register_attribute(name, torch._C.TensorType.get(), constants[name].detach())
    try:
        kind = torch._C.ConcreteModuleType.from_jit_type(module._type())
        module._define(kind, source.code.replace(DEVICE, str(device)), NAMES.get)
    except RuntimeError as error:
        raise UnsupportedModel(f"a segment does not compile: {str(error).strip().splitlines()[0]}") from error
    run: Run = module._get_method("forward")
    return run
