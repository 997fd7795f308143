"""A model cut at its sites: segments that, run in order, do exactly what the model does.

Each segment is written as TorchScript over the very operators that were traced, so that one call runs a whole segment
without Python, and without the interpreter's lock: the event loop goes on meanwhile.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from apparate_worker.model.cutting import DEVICE, Cut, Source
from apparate_worker.model.errors import UnsupportedModel

Run = Callable[..., Any]
NAMES = {"torch": torch, "Tensor": Tensor, "List": typing.List, "Optional": typing.Optional}  # noqa: UP006


@dataclass(slots=True)
class State:
    """Where a pass stands: the value at the last site, what goes around it, and the mask."""

    value: Tensor
    sides: tuple[Any, ...]
    mask: Tensor | None
    inputs: tuple[Tensor, ...] = ()
    """What the side values were made from; empty where the model has none."""


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

    def arrange(self, opened: Sequence[int], says: object) -> None:
        """Nothing to do: rows can part at every site."""

    def start(self, inputs: Mapping[str, Tensor], says: object = ()) -> State:
        """The state before the first segment. Raises KeyError for a missing input."""
        given = tuple(inputs[name] for name in self.inputs)
        return self._beside(given[0], given)

    def _beside(self, value: Tensor, given: tuple[Tensor, ...]) -> State:
        """A value with the side values and the mask of the inputs."""
        if self.prologue is None and self.mask_input is None:
            return State(value, (), None)
        sides = self.prologue(*given) if self.prologue is not None else ()
        mask = given[self.inputs.index(self.mask_input)] if self.mask_input is not None else None
        return State(value, sides, mask, given)

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

    def likeness(self, state: State) -> Hashable:
        """Equal for states that can be joined: the shapes of what they hold, but for N."""
        return tuple(tuple(held.shape[1:]) for held in (state.value, *state.inputs))

    def select(self, state: State, rows: Sequence[int]) -> State:
        """A state of its own for some of the rows, in the order given."""
        index = torch.tensor(rows, device=state.value.device)
        return self._beside(state.value[index], tuple(given[index] for given in state.inputs))

    def join(self, states: Sequence[State]) -> State:
        """One state for the rows of several that stand at the same site and differ in nothing but N."""
        given = tuple(torch.cat(parts) for parts in zip(*(state.inputs for state in states), strict=True))
        return self._beside(torch.cat([state.value for state in states]), given)

    def __call__(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Scores [N, C] of a whole pass."""
        state = self.start(inputs)
        for k in range(len(self.segments)):
            self.advance(k, state)
        return state.value


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
