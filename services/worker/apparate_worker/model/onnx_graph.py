"""A backbone as an ONNX graph: its ramps added to it, and pieces of it from one site to another.

A piece takes the value at a site (the first one: the model's input) and the other inputs, and gives the value at a
later site with what the ramps on its way say. What goes around sites, as masks do, each piece works out for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from apparate_worker.model.backends import GRAPH, GRAPH_WEIGHTS
from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.ramps import RampHead, RampShape

OUTPUT = "output"
INLINE_BELOW = 1024  # bytes; shapes and axes stay in the graph, where the optimizer folds them
MOST_BYTES = 2**31 - 2**24  # of one graph with its weights, as the exporter hands it over
Array = npt.NDArray[Any]


def site_name(site: int) -> str:
    """The value at a site of the exported graph."""
    return f"site{site}"


def scores_name(ramp: int) -> str:
    """[N, H] what a ramp's linear layer says, divided by its temperature unless a tail follows."""
    return f"scores{ramp}"


def pooled_name(ramp: int) -> str:
    """[N, F] what a ramp's linear layer reads."""
    return f"pooled{ramp}"


@dataclass(frozen=True, eq=False)
class Backbone:
    """A graph without its large weights, the weights, and the names of its values at the model's sites."""

    graph: ModelProto
    weights: Mapping[str, Array]
    sites: tuple[str, ...]

    @property
    def values(self) -> tuple[str, ...]:
        """Where pieces end: the value at each site, then the scores."""
        return (*self.sites, OUTPUT)


def save(model: ModelProto, folder: Path) -> None:
    """Write a graph, its weights in a file of their own that workers map."""
    onnx.save_model(
        model,
        folder / GRAPH,
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=GRAPH_WEIGHTS,
        size_threshold=INLINE_BELOW,
        convert_attribute=False,
    )
    (folder / GRAPH_WEIGHTS).touch()  # a model of nothing but small weights has none there


def load(folder: Path, sites: Sequence[str]) -> Backbone:
    """The graph of a folder; its weights are mapped, so they take memory of their own only where they are repacked.

    Raises OSError and ValueError for a damaged file.
    """
    model = onnx.load(folder / GRAPH, load_external_data=False)
    mapped = (
        np.memmap(folder / GRAPH_WEIGHTS, dtype=np.uint8, mode="r") if (folder / GRAPH_WEIGHTS).stat().st_size else None
    )
    weights = {}
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        if mapped is None or place.get("location") != GRAPH_WEIGHTS:
            raise ValueError(f"{folder / GRAPH}: {tensor.name} is in {place.get('location')}, expected {GRAPH_WEIGHTS}")
        begin, length = int(place.get("offset", 0)), int(place["length"])
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        weights[tensor.name] = mapped[begin : begin + length].view(dtype).reshape(tuple(tensor.dims))
    return Backbone(model, weights, tuple(sites))


def with_ramps(backbone: Backbone, heads: Sequence[RampHead], mask: str | None) -> Backbone:
    """The same with the ramps in the graph, under their names; `mask` is the input that says what is padding.

    Raises UnsupportedModel for a site whose size is not known.
    """
    model = ModelProto()
    model.CopyFrom(backbone.graph)
    graph, kinds = model.graph, _kinds(model.graph)
    for r, (name, head) in enumerate(zip(backbone.sites, heads, strict=True)):
        weight, bias = head.linear()
        _Nodes(graph, f"ramp{r}").ramp(kinds[name], head.shape, mask, weight, bias, r)
        for named in (pooled_name(r), scores_name(r)):
            graph.output.append(helper.make_tensor_value_info(named, TensorProto.FLOAT, None))
    return Backbone(model, backbone.weights, backbone.sites)


def piece(backbone: Backbone, begin: int, end: int, more: Sequence[str] = ()) -> ModelProto:
    """Segments `begin` to `end`, both included: the value at its end, and `more` values on the way."""
    graph, values = backbone.graph.graph, backbone.values
    wanted = [values[end], *more]
    entry = values[begin - 1] if begin else ""
    nodes, read = _upstream(graph, wanted, entry)
    kinds = _kinds(graph)
    inputs = [kinds[name] for name in (*(i.name for i in graph.input), entry) if name in read]
    made = helper.make_graph(
        nodes,
        f"segments {begin} to {end}",
        inputs,
        [kinds[name] for name in wanted],
        [tensor for tensor in graph.initializer if tensor.name in read],
    )
    return helper.make_model(
        made,
        opset_imports=backbone.graph.opset_import,
        ir_version=backbone.graph.ir_version,
        functions=backbone.graph.functions,
    )


def _upstream(graph: GraphProto, wanted: Sequence[str], entry: str) -> tuple[list[NodeProto], set[str]]:
    """The nodes that some values come from, in order, and all they read; what comes before `entry` is left out."""
    makers = {output: node for node in graph.node for output in node.output}
    found: set[str] = set()
    todo = list(wanted)
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        if name != entry and name in makers:
            todo += [read for read in _reads(makers[name]) if read]
    made = found - {entry}
    return [node for node in graph.node if any(output in made for output in node.output)], found


def _reads(node: NodeProto) -> list[str]:
    """Inputs of a node, those of its inner graphs too."""
    inner = [a.g for a in node.attribute if a.type == AttributeProto.GRAPH]
    return [*node.input, *(name for graph in inner for child in graph.node for name in _reads(child))]


def _kinds(graph: GraphProto) -> dict[str, ValueInfoProto]:
    return {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}


class _Nodes:
    """Adds the nodes of one ramp to a graph."""

    def __init__(self, graph: GraphProto, prefix: str) -> None:
        self._graph, self._prefix, self._count = graph, prefix, 0

    def ramp(
        self, site: ValueInfoProto, shape: RampShape, mask: str | None, weight: Array, bias: Array, ramp: int
    ) -> None:
        """Pooling and linear layer at a site."""
        x = site.name
        if site.type.tensor_type.elem_type != TensorProto.FLOAT:
            x = self._add("Cast", [x], to=TensorProto.FLOAT)
        pooled = pooled_name(ramp)
        self._pool(x, site, shape, mask, pooled)
        linear = [pooled, self._constant(weight), self._constant(bias)]
        self._add("Gemm", linear, output=scores_name(ramp), transB=1)

    def _pool(self, x: str, site: ValueInfoProto, shape: RampShape, mask: str | None, output: str) -> None:
        if shape.dimensions == 4:
            self._pool_maps(x, site, shape, output)
        elif shape.dimensions == 2:
            self._add("Identity", [x], output=output)
        elif shape.pooling == "first":
            self._add("Gather", [x, self._constant(np.array(0))], output=output, axis=1)
        else:
            kept = self._add("Cast", [mask], to=TensorProto.FLOAT) if shape.masked and mask is not None else ""
            if shape.pooling == "mean":
                self._mean(x, kept, output)
                return
            mean = self._mean(x, kept)
            if kept:
                here = self._add("Unsqueeze", [kept, self._constant(np.array([2]))])
                none = self._add("Equal", [here, self._constant(np.array(0, np.float32))])
                x = self._add("Where", [none, self._constant(np.array(-1e4, np.float32)), x])
            self._add("Concat", [mean, self._over("ReduceMax", x, 1)], output=output, axis=1)

    def _mean(self, x: str, kept: str, output: str = "") -> str:
        """Over the sequence, without padding where `kept` [N, L] says what is none."""
        if not kept:
            return self._over("ReduceMean", x, 1, output=output)
        row = self._add("Unsqueeze", [kept, self._constant(np.array([1]))])
        total = self._add("Squeeze", [self._add("MatMul", [row, x]), self._constant(np.array([1]))])
        count = self._over("ReduceSum", kept, 1, keepdims=1)
        least = self._add("Max", [count, self._constant(np.array(1, np.float32))])
        return self._add("Div", [total, least], output=output)

    def _pool_maps(self, x: str, site: ValueInfoProto, shape: RampShape, output: str) -> None:
        """Of [N, C, H, W]."""
        if shape.pooling == "mean":
            self._add("Flatten", [self._add("GlobalAveragePool", [x])], output=output)
        elif shape.pooling == "moments":
            squares = self._add("GlobalAveragePool", [self._add("Mul", [x, x])])
            both = self._add("Concat", [self._add("GlobalAveragePool", [x]), squares], axis=1)
            self._add("Flatten", [both], output=output)
        else:
            grid = int(shape.pooling[-1])
            height, width = (d.dim_value for d in site.type.tensor_type.shape.dim[2:])
            if not height or not width:
                raise UnsupportedModel(f"the value {site.name} has no fixed height and width, which its ramp needs")
            # One product, measured: ONNX Runtime's own pooling takes three times as long with windows that large.
            places = self._add("Reshape", [x, self._constant(np.array([0, 0, height * width]))])
            cells = np.einsum("ih,jw->hwij", _windows(grid, height), _windows(grid, width))
            means = self._add("MatMul", [places, self._constant(cells.reshape(height * width, grid * grid))])
            self._add("Flatten", [means], output=output)

    def _over(self, kind: str, x: str, axis: int, *, keepdims: int = 0, output: str = "") -> str:
        return self._add(kind, [x, self._constant(np.array([axis]))], output=output, keepdims=keepdims)

    def _constant(self, value: Array) -> str:
        name = self._name()
        self._graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name))
        return name

    def _add(self, kind: str, reads: Sequence[str], output: str = "", **attributes: Any) -> str:
        output = output or self._name()
        self._graph.node.append(helper.make_node(kind, list(reads), [output], **attributes))
        return output

    def _name(self) -> str:
        self._count += 1
        return f"{self._prefix}_{self._count}"


def _windows(cells: int, size: int) -> Array:
    """[cells, size] the means of torch's adaptive pooling as a matrix: windows overlap where size does not divide."""
    found = np.zeros((cells, size), np.float32)
    for i in range(cells):
        begin, end = i * size // cells, -(-(i + 1) * size // cells)
        found[i, begin:end] = 1 / (end - begin)
    return found
