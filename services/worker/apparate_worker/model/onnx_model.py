"""A model run by ONNX Runtime, in as few pieces as the plan needs: rows can part where a piece ends.

Without an open exit the whole model is one piece. With some, it is cut at their sites, and behind the first of them
also wherever that keeps a piece short, because rows that have their answer wait between pieces for those that have
none. What ramps say comes out of the graph beside the value at a piece's end, and a graph computes all that it can say:
so there are pieces that say what the plan in force wants to hear, and others that say everything, for passes that look
at ramps which are off. Each of the two has weights of its own.
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
    """Which input is the value at the site before; of the first piece the model's first input."""
    inputs: tuple[str, ...]
    """Which inputs of the model it takes besides."""
    names: tuple[str, ...]
    """The value at its end, and what the ramps on the way say."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """The whole model in pieces, by the segment that each begins with, and what can be heard on the way."""

    by_begin: dict[int, Piece]
    says: frozenset[tuple[int, bool]]


@dataclass(slots=True)
class OnnxState:
    """Where a pass stands: the value it has come to, and what ramps have said on the way."""

    value: Array
    inputs: dict[str, Array]
    pieces: Pieces
    at: int = 0
    """The next segment to run; it begins a piece."""
    said: dict[str, Array] = field(default_factory=dict)


class OnnxModel:
    """R+1 segments over ONNX Runtime on the CPU; see `segments.SegmentedModel`, whose place it takes.

    ramps: how many are in the graph, 0 or R. reach_ms [R]: time up to each site for one row, from the profile; says how
    long a piece takes. Raises whatever ONNX Runtime raises on a graph that it cannot load.
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
        self._backbone, self._threads = backbone, threads
        self.inputs, self.mask_input = tuple(inputs), mask_input
        self._reach_ms = list(reach_ms)
        self._everything: Says = tuple((r, active) for r in range(ramps) for active in (True, False))
        self._example: dict[str, Array] | None = None
        self._cut: tuple[int, ...] = ()
        self._pieces = self._made((), (), None)
        self._all: Pieces | None = None

    @property
    def segments(self) -> range:
        """R+1 of them, by number."""
        return range(len(self._backbone.sites) + 1)

    def arrange(self, opened: Sequence[int], says: Says) -> None:
        """Cut where exits are open, and hear what `says` wants and no more, in passes that start from now on.

        Those under way keep their pieces. Any thread, one at a time. Right without it: then a pass that wants to hear
        more takes the pieces that say everything, and what a ramp says is there only when its piece ends.
        """
        self.cut_at(self.cuts(opened), says)

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

    def cut_at(self, ramps: Sequence[int], says: Says = ()) -> None:
        """Pieces that end at the sites of these ramps and at the end, and say this on the way."""
        cut = tuple(ramps)
        if cut != self._cut or frozenset(says) != self._pieces.says:
            self._pieces = self._made(cut, says, self._pieces)
        if cut != self._cut and self._all is not None:
            self._all = self._made(cut, self._everything, self._all)
        self._cut = cut

    def _made(self, cut: tuple[int, ...], says: Says, before: Pieces | None) -> Pieces:
        """Pieces; those of `before` that are the same are taken over."""
        found, begin = {}, 0
        for end in (*cut, len(self.segments) - 1):
            here = (scores_name(r) if active else pooled_name(r) for r, active in says if begin <= r <= end)
            names = (self._backbone.values[end], *here)
            old = before.by_begin.get(begin) if before is not None else None
            found[begin] = old if old is not None and old.names == names else self._piece(begin, end, names)
            begin = end + 1
        pieces = Pieces(found, frozenset(says))
        if self._example is not None:  # the first pass of a session is slower: one that nobody waits for
            state = OnnxState(self._example[self.inputs[0]], self._example, pieces)
            for k in self.segments:
                self.advance(k, state)
        return pieces

    def _piece(self, begin: int, end: int, names: tuple[str, ...]) -> Piece:
        graph = piece(self._backbone, begin, end, names[1:])
        session = session_of(graph, self._backbone.weights, self._threads)
        entry = self._backbone.values[begin - 1] if begin else self.inputs[0]
        taken = tuple(one.name for one in session.get_inputs() if one.name != entry)
        return Piece(begin, end, session, entry, taken, names)

    def start(self, inputs: Mapping[str, Tensor], says: Says = ()) -> OnnxState:
        """The state before the first segment. Raises KeyError for a missing input."""
        given = {name: inputs[name].numpy() for name in self.inputs}
        if self._example is None:
            self._example = {name: array[:1].copy() for name, array in given.items()}
        pieces = self._pieces
        if not pieces.says.issuperset(says):
            if self._all is None:
                self._all = self._made(self._cut, self._everything, None)
            pieces = self._all
        return OnnxState(given[self.inputs[0]], given, pieces)

    def advance(self, k: int, state: OnnxState) -> OnnxState:
        """Run segment k, with those that are one piece with it; nothing to do when it has been run with another."""
        if k < state.at:
            return state
        one = state.pieces.by_begin[k]
        feed = {one.entry: state.value}
        for name in one.inputs:
            feed[name] = state.inputs[name]
        found = one.session.run(one.names, feed)
        state.value, state.at = found[0], one.end + 1
        for name, array in zip(one.names[1:], found[1:], strict=True):
            state.said[name] = array
        return state

    def site(self, state: OnnxState) -> Any:
        """What the ramps have said; their heads know where to look."""
        return state.said

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
        return OnnxState(state.value[index], inputs, state.pieces, state.at, said)

    def join(self, states: Sequence[OnnxState]) -> OnnxState:
        """One state for the rows of several that stand at the same site and differ in nothing but N."""
        first = states[0]
        inputs = {name: np.concatenate([one.inputs[name] for one in states]) for name in first.inputs}
        said = {name: np.concatenate([one.said[name] for one in states]) for name in first.said}
        value = np.concatenate([one.value for one in states])
        return OnnxState(value, inputs, first.pieces, first.at, said)

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
    session = session_of(piece(backbone, 0, len(backbone.sites), backbone.sites), backbone.weights, threads)
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
