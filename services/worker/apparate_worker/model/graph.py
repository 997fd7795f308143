"""The dataflow graph of a model, and the places in it where a ramp may sit.

A site is a value that carries everything computed so far: a cut vertex between the model's first input and its output.
What does not descend from the first input's values (masks, positions, sizes) is the same for the whole pass and may go
around a site.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from apparate.adaptation.sites import cut_vertices
from apparate.contract.resource import TensorSpec
from apparate_worker.model.errors import UnsupportedModel

# Kinds of operators, by the operator and never by the model.
COMPUTE = ("conv", "linear", "mm", "matmul", "attention", "embedding", "einsum", "lstm", "gru", "rnn")
LAYOUT = (
    *("pad", "view", "reshape", "permute", "transpose", "t", "flatten", "slice", "select", "expand", "contiguous"),
    *("to", "_to_copy", "clone", "dropout", "unsqueeze", "squeeze", "alias", "detach", "unflatten", "constant_pad_nd"),
)
SOFTMAX = ("softmax", "log_softmax", "_softmax", "_log_softmax", *LAYOUT)
LEAST_WORK_AHEAD = 0.02  # a site with less of the pass left has nothing to save; the default ramp budget


@dataclass(frozen=True)
class Graph:
    """A traced model.

    nodes      what reaches the output, in execution order, without inputs and constants
    data       the subset that descends from the values of the first input
    constants  tensors by the name of their node;  inputs  the input nodes in order
    """

    nodes: tuple[fx.Node, ...]
    data: frozenset[fx.Node]
    inputs: tuple[fx.Node, ...]
    constants: Mapping[fx.Node, Tensor]
    output: fx.Node

    @property
    def flow(self) -> tuple[fx.Node, ...]:
        """The nodes that carry the first input's data, in execution order."""
        return tuple(n for n in self.nodes if n in self.data)


def trace(model: nn.Module, example: Sequence[Tensor], specs: Sequence[TensorSpec]) -> Graph:
    """Trace a model whose batch dimension, and every dimension that varies, stays free.

    example: one tensor for each input, at least two items each. Raises UnsupportedModel.
    """
    shapes = tuple({0: Dim.DYNAMIC} | {i + 1: Dim.DYNAMIC for i, n in enumerate(s.shape) if n == -1} for s in specs)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # the exporter's notes about its own future
            program = torch.export.export(model, tuple(example), dynamic_shapes=(shapes,), strict=False)
            if any(_mutates(n) for n in program.graph.nodes):
                program = program.run_decompositions({})
    except Exception as error:
        raise UnsupportedModel(f"the model cannot be traced: {str(error).strip().splitlines()[0]}") from error
    return _graph(program)


def _mutates(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _graph(program: ExportedProgram) -> Graph:
    by_name = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs, constants = [], {}
    for spec in program.graph_signature.input_specs:
        node = by_name[spec.arg.name]
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(node)
        elif spec.target in program.state_dict:
            constants[node] = program.state_dict[spec.target].detach()
        elif isinstance(program.constants.get(spec.target or ""), Tensor):
            constants[node] = program.constants[spec.target or ""].detach()
        else:
            raise UnsupportedModel(
                f"the model depends on {spec.arg.name}, a {spec.kind.name.lower()} that is no tensor"
            )
    (outputs,) = next(n for n in program.graph.nodes if n.op == "output").args
    if len(outputs) != 1 or not isinstance(outputs[0], fx.Node):
        raise UnsupportedModel("the model changes its own buffers while it runs, or returns more than one tensor")
    sink = outputs[0]
    live = _ancestors(sink)
    order = [n for n in program.graph.nodes if n in live and n.op == "call_function"]
    data = {inputs[0]} if inputs else set()
    for node in order:
        if any(p in data for p in node.all_input_nodes) and _is_tensor(node):
            data.add(node)
    if sink not in data:
        raise UnsupportedModel("the model's output does not depend on its first input")
    return Graph(tuple(order), frozenset(data), tuple(inputs), constants, sink)


def _is_tensor(node: fx.Node) -> bool:
    """Whether the node carries values; sizes of a tensor say nothing of them."""
    value = node.meta.get("val")
    return isinstance(value, Tensor | tuple | list)


def _ancestors(node: fx.Node) -> set[fx.Node]:
    found, todo = {node}, [node]
    while todo:
        for parent in todo.pop().all_input_nodes:
            if parent not in found:
                found.add(parent)
                todo.append(parent)
    return found


def cuts(graph: Graph) -> list[fx.Node]:
    """Every node that all paths from the first input to the output pass, in execution order, without the ends."""
    edges = [(tail, head) for head in graph.flow for tail in head.all_input_nodes]
    return cut_vertices(edges, graph.inputs[0], graph.output)


def sites(graph: Graph) -> list[fx.Node]:
    """The cut vertices worth a ramp, shallow to deep: without work between them, only the last that changes values.

    Sites before the first and after nearly all work are left out, and so are values that cannot be pooled.
    Raises UnsupportedModel when nothing is left.
    """
    legal = set(cuts(graph))
    work = {node: _work(node) for node in graph.flow}
    total = sum(work.values())
    kept: list[fx.Node] = []
    done, candidate = 0.0, None
    for node in graph.flow:
        if work[node]:
            if candidate is not None:
                kept.append(candidate)
            candidate = None
        done += work[node]
        worth = done > 0 and total - done > LEAST_WORK_AHEAD * total
        if node in legal and worth and _poolable(node) and (candidate is None or kind_of(node) not in LAYOUT):
            candidate = node
    if not kept:
        raise UnsupportedModel(
            "the model has no place for a ramp: no inner value carries everything computed so far with work still to "
            "do. Early exits can do nothing for it: serve it as it is, by another server"
        )
    return kept


def head(graph: Graph) -> fx.Node | None:
    """The last node that does work, if all that follows reads nothing else and it is [N, H]; what follows is the tail.

    None where the model ends with that node, or with a plain softmax after it: then a ramp needs no tail.
    """
    place = max((i for i, node in enumerate(graph.flow) if _work(node)), default=None)
    if place is None:
        return None
    found, after = graph.flow[place], graph.flow[place + 1 :]
    value = found.meta.get("val")
    known = {found, *after, *graph.constants}
    if not isinstance(value, Tensor) or value.dim() != 2 or any(set(n.all_input_nodes) - known for n in after):
        return None
    return found if any(kind_of(n) not in SOFTMAX for n in after) else None


def kind_of(node: fx.Node) -> str:
    """The operator's plain name: conv2d, relu, add."""
    target = node.target
    return target._schema.name.split("::")[-1] if isinstance(target, torch._ops.OpOverload) else str(target)


def _poolable(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point() and value.dim() in (2, 3, 4)


def _work(node: fx.Node) -> float:
    """Multiplications of a node at the traced sizes, roughly; 0 for what only moves or scales values."""
    kind = kind_of(node)
    value = node.meta.get("val")
    if not any(word in kind for word in COMPUTE) or kind.startswith("_assert"):
        return 0.0
    value = value if isinstance(value, Tensor) else next((v for v in value or () if isinstance(v, Tensor)), None)
    if value is None:
        return 0.0
    size = _count(value)
    parents = [n.meta.get("val") for n in node.all_input_nodes]
    if "embedding" in kind or len(parents) < 2 or not isinstance(parents[1], Tensor):
        return float(size)
    if "attention" in kind:
        return 2.0 * size * _size(parents[1].shape[-2])
    if "conv" in kind:
        return float(size) * _count(parents[1]) / _size(parents[1].shape[0])
    inner = next((p for p in parents if isinstance(p, Tensor) and p.dim() >= 2), None)
    return float(size) * (_size(inner.shape[-1]) if inner is not None else 1)


def _count(value: Tensor) -> int:
    total = 1
    for size in value.shape:
        total *= _size(size)
    return total


def _size(size: Any) -> int:
    """A dimension as a number; of one that varies, what the example had."""
    if isinstance(size, int):
        return size
    hint = getattr(size.node, "hint", None)
    return int(hint) if hint is not None else 1
