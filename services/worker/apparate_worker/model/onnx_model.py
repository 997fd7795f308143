"""A model run by ONNX Runtime, in as few pieces as the plan needs: rows can part where a piece ends.

Without an open exit the whole model is one piece. With some, it is cut at their sites, and behind the first of them
also wherever that keeps a piece short, because rows that have their answer wait between pieces for those that have
none. What ramps say comes out of the graph with the value at a piece's end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from torch import Tensor

from apparate_worker.model.onnx_graph import Backbone, piece, pooled_name, scores_name
from apparate_worker.model.ramps import Floats, RampHead

SHORT_MS = 2.0  # of a piece that answered rows run through, for one row; a border costs about a hundredth of it
LEFT_OUT = ["SkipLayerNormFusion"]  # measured: its kernel takes half as long again as the three it replaces
Array = npt.NDArray[Any]
Says = tuple[tuple[int, bool], ...]
"""Ramps whose outputs a pass wants, in order: True for the scores, False for what a ramp that is off would read."""
_shared = threading.Lock()
_arena: list[bool] = []


@dataclass(frozen=True, eq=False)
class Piece:
    """Segments `begin` to `end`, both included, as one session."""

    begin: int
    end: int
    session: onnxruntime.InferenceSession
    entry: str
    """Which input is the value at the site before; empty for the first piece."""
    inputs: tuple[str, ...]
    """Which inputs of the model it takes."""
    value: str
    _names: dict[Says, list[str]] = field(default_factory=dict)

    def names(self, says: Says) -> list[str]:
        """What to ask the session for."""
        found = self._names.get(says)
        if found is None:
            here = [(r, active) for r, active in says if self.begin <= r <= self.end]
            found = [self.value, *(scores_name(r) if active else pooled_name(r) for r, active in here)]
            self._names[says] = found
        return found


@dataclass(slots=True)
class OnnxState:
    """Where a pass stands: the value it has come to, and what ramps have said on the way."""

    value: Array
    inputs: dict[str, Array]
    pieces: dict[int, Piece]
    says: Says
    at: int = 0
    """The next segment to run; it begins a piece."""
    said: dict[str, Array] = field(default_factory=dict)


class OnnxModel:
    """R+1 segments over ONNX Runtime on the CPU; see `segments.SegmentedModel`, whose place it takes.

    reach_ms [R]: time up to each site for one row, from the profile; says how long a piece takes. Raises whatever ONNX
    Runtime raises on a graph that it cannot load.
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        inputs: Sequence[str],
        mask_input: str | None,
        ramps: int,
        threads: int,
        reach_ms: Sequence[float] = (),
    ) -> None:
        self._backbone, self._ramps, self._threads = backbone, ramps, threads
        self.inputs, self.mask_input = tuple(inputs), mask_input
        self._reach_ms = list(reach_ms)
        self._paths = onnxruntime.RunOptions()
        self._paths.only_execute_path_to_fetches = True  # what nobody asked for is not computed
        self._example: dict[str, Array] | None = None
        self._pieces: dict[int, Piece] = {}
        self.cut_at([])

    @property
    def segments(self) -> range:
        """R+1 of them, by number."""
        return range(len(self._backbone.sites) + 1)

    def arrange(self, opened: Sequence[int]) -> None:
        """Cut where exits are open, for passes that start from now on; those under way keep their pieces. Any thread.

        Correct without it: then what a ramp says is there only when its piece ends.
        """
        self.cut_at(self.cuts(opened))

    def cuts(self, opened: Sequence[int]) -> list[int]:
        """The ramps at whose sites a model with these open exits is cut."""
        if not opened:
            return []
        found, begin = set(opened), min(opened)
        for r in range(begin + 1, len(self._reach_ms)):
            if self._reach_ms[r] - self._reach_ms[begin] >= SHORT_MS or r in found:
                found.add(r)
                begin = r
        return sorted(found)

    def cut_at(self, ramps: Sequence[int]) -> None:
        """Make the pieces that end at the sites of these ramps and at the end."""
        before = self._pieces
        found, begin = {}, 0
        for end in (*ramps, len(self.segments) - 1):
            old = before.get(begin)
            found[begin] = old if old is not None and old.end == end else self._piece(begin, end)
            begin = end + 1
        if found.keys() == before.keys() and all(found[k] is before[k] for k in found):
            return
        if self._example is not None:
            self._run_through(found, self._example)
        self._pieces = found

    def _piece(self, begin: int, end: int) -> Piece:
        graph = piece(self._backbone, begin, end, self._ramps)
        session = session_of(graph, self._backbone.weights, self._threads)
        entry = self._backbone.values[begin - 1] if begin else self.inputs[0]
        taken = tuple(one.name for one in session.get_inputs() if one.name != entry)
        return Piece(begin, end, session, entry, taken, self._backbone.values[end])

    def _run_through(self, pieces: dict[int, Piece], inputs: dict[str, Array]) -> None:
        """A pass that nobody waits for: the first one of a session is slower."""
        state = OnnxState(inputs[self.inputs[0]], inputs, pieces, ())
        for k in self.segments:
            self.advance(k, state)

    def start(self, inputs: Mapping[str, Tensor], says: Says = ()) -> OnnxState:
        """The state before the first segment. Raises KeyError for a missing input."""
        given = {name: inputs[name].numpy() for name in self.inputs}
        if self._example is None:
            self._example = {name: array[:1].copy() for name, array in given.items()}
        return OnnxState(given[self.inputs[0]], given, self._pieces, says)

    def advance(self, k: int, state: OnnxState) -> OnnxState:
        """Run segment k, with those that are one piece with it; nothing to do when it has been run with another."""
        if k < state.at:
            return state
        one = state.pieces[k]
        feed = {one.entry: state.value}
        for name in one.inputs:
            feed[name] = state.inputs[name]
        names = one.names(state.says)
        found = one.session.run(names, feed, self._paths)
        state.value, state.at = found[0], one.end + 1
        for name, array in zip(names[1:], found[1:], strict=True):
            state.said[name] = array
        return state

    def site(self, state: OnnxState) -> Any:
        """What the ramps have said; their heads know where to look."""
        return state.said

    def value(self, state: OnnxState) -> Tensor:
        """The activation that a pass has come to."""
        return torch.from_numpy(state.value)

    def mask(self, state: OnnxState) -> Tensor | None:
        """[N, L] 1 for a token and 0 for padding; None when the model has no such input."""
        return torch.from_numpy(state.inputs[self.mask_input]) if self.mask_input is not None else None

    def output(self, state: OnnxState) -> Tensor:
        """Scores [N, C], once the last segment has run."""
        return torch.from_numpy(state.value)

    def likeness(self, state: OnnxState) -> Hashable:
        """Equal for states that can be joined: cut alike, and of like shapes but for N."""
        held = (state.value, *state.inputs.values())
        return (id(state.pieces), state.at, *(array.shape[1:] for array in held))

    def select(self, state: OnnxState, rows: Sequence[int]) -> OnnxState:
        """A state of its own for some of the rows, in the order given."""
        index = np.array(rows, np.int64)
        inputs = {name: array[index] for name, array in state.inputs.items()}
        said = {name: array[index] for name, array in state.said.items()}
        return OnnxState(state.value[index], inputs, state.pieces, state.says, state.at, said)

    def join(self, states: Sequence[OnnxState]) -> OnnxState:
        """One state for the rows of several that stand at the same site and differ in nothing but N."""
        first = states[0]
        inputs = {name: np.concatenate([one.inputs[name] for one in states]) for name in first.inputs}
        said = {name: np.concatenate([one.said[name] for one in states]) for name in first.said}
        value = np.concatenate([one.value for one in states])
        return OnnxState(value, inputs, first.pieces, first.says, first.at, said)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Scores [N, C] of a whole pass."""
        state = self.start(inputs)
        for k in self.segments:
            self.advance(k, state)
        return self.output(state)


class OnnxHead:
    """A ramp whose pooling and linear layer are in the graph: what is left is the model's tail, if it has one."""

    def __init__(self, head: RampHead, ramp: int) -> None:
        self._head, self._scores, self._pooled = head, scores_name(ramp), pooled_name(ramp)

    def pool(self, said: Mapping[str, Array], mask: Tensor | None) -> Tensor:
        """[N, F] what the linear layer reads."""
        return torch.from_numpy(said[self._pooled])

    def answer(self, said: Mapping[str, Array], mask: Tensor | None) -> Tensor:
        """[N, C] class scores, divided by the temperature."""
        return self._head.finish(torch.from_numpy(said[self._scores]))

    def on_host(self) -> Any:
        """See `RampHead.on_host`."""
        return self._head.on_host()

    def numpy(self) -> tuple[Floats, Floats, float]:
        """See `RampHead.numpy`."""
        return self._head.numpy()


def session_of(graph: onnx.ModelProto, weights: Mapping[str, Array], threads: int) -> onnxruntime.InferenceSession:
    """A graph ready to run; of the weights it maps, it takes those that it reads."""
    _share_memory()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3  # errors; it warns of every constant that it folds
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # the threads of other pieces would wait
    names = [tensor.name for tensor in graph.graph.initializer if tensor.name in weights]
    if names:
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(weights[name]) for name in names]
        options.add_external_initializers(names, values)
    return onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"], disabled_optimizers=LEFT_OUT
    )


def every_value(
    backbone: Backbone, inputs: Sequence[str], threads: int
) -> Callable[[Mapping[str, Tensor]], list[Tensor]]:
    """A whole pass that gives the value at every site, and the scores last."""
    graph = piece(backbone, 0, len(backbone.sites), 0, backbone.sites)
    session = session_of(graph, backbone.weights, threads)
    taken, names = {one.name for one in session.get_inputs()}, list(backbone.values)

    def values(given: Mapping[str, Tensor]) -> list[Tensor]:
        found = session.run(names, {name: given[name].numpy() for name in inputs if name in taken})
        return [torch.from_numpy(value) for value in found]

    return values


def _share_memory() -> None:
    """One arena for all sessions of the process: pieces of one pass then reuse what is still in the cache."""
    with _shared:
        if _arena:
            return
        kind = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR
        place = onnxruntime.OrtMemoryInfo("Cpu", kind, 0, onnxruntime.OrtMemType.DEFAULT)
        onnxruntime.create_and_register_allocator(place, onnxruntime.OrtArenaCfg(0, -1, -1, -1))
        _arena.append(True)
