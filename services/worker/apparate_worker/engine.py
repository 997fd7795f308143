"""One pass: segments in order, a ramp's scores as soon as they are there, and the model's own at the end.

No sockets, no metrics, no clock. Everything here runs in the one device thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apparate.feedback import FINAL
from apparate.plan import Plan

Array = npt.NDArray[Any]
CLOSED = 0.0  # the threshold that lets nobody go


class Model(Protocol):
    """A model in segments; see `apparate_worker.model.segments`."""

    @property
    def segments(self) -> Sequence[Any]:
        """R+1 callables."""

    def start(self, inputs: Mapping[str, Tensor]) -> Any:
        """The state before the first segment."""

    def advance(self, k: int, state: Any) -> Any:
        """Run segment k; afterwards the state sits at site k."""

    def site(self, state: Any) -> Tensor:
        """The activation at the site."""

    def mask(self, state: Any) -> Tensor | None:
        """[N, L] 1 for a token and 0 for padding, if there is one."""

    def output(self, state: Any) -> Tensor:
        """Scores [N, C] after the last segment."""


class Head(Protocol):
    """A ramp's head; see `apparate_worker.model.ramps`."""

    def pool(self, activation: Tensor, mask: Tensor | None) -> Tensor:
        """[N, F] float32: what the head reads of an activation."""

    def answer(self, activation: Tensor, mask: Tensor | None) -> Tensor:
        """[N, C] float32 class scores, already divided by the head's temperature."""


class Fetch(Protocol):
    """A tensor on its way to the host."""

    def ready(self) -> bool:
        """Whether `take` would return at once."""

    def take(self) -> Array:
        """The values on the host; waits for them, and for nothing that was launched later."""


class DeviceLink(Protocol):
    """The way to the device and back."""

    def upload(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """Inputs on the device."""

    def fetch(self, tensor: Tensor) -> Fetch:
        """Start to bring `tensor` to the host."""


class _Here:
    """A tensor that is on the host already."""

    def __init__(self, tensor: Tensor) -> None:
        # Copied: a head may hand out a view of an activation that a later segment writes to.
        self._values = np.array(tensor.numpy())

    def ready(self) -> bool:
        return True

    def take(self) -> Array:
        return self._values


class CpuLink:
    """The device is the CPU: everything is there at once."""

    def upload(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """Inputs as tensors over the same memory."""
        return {name: as_tensor(values) for name, values in arrays.items()}

    def fetch(self, tensor: Tensor) -> Fetch:
        """The tensor's values now."""
        return _Here(tensor)


class _Copying:
    """A tensor that a side stream copies into pinned memory."""

    def __init__(self, buffer: Tensor, source: Tensor, copied: torch.cuda.Event) -> None:
        self._buffer, self._source, self._copied = buffer, source, copied

    def ready(self) -> bool:
        return bool(self._copied.query())  # type: ignore[no-untyped-call]

    def take(self) -> Array:
        self._copied.synchronize()
        return self._buffer.numpy()


class CudaLink:
    """Copies go over a side stream that waits for the main stream by event; the main stream waits for nobody."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def upload(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """Inputs through pinned memory; the copy is in order on the main stream."""
        pinned = {name: as_tensor(values).pin_memory() for name, values in arrays.items()}
        return {name: values.to(self._device, non_blocking=True) for name, values in pinned.items()}

    def fetch(self, tensor: Tensor) -> Fetch:
        """Copy on the side stream once the main stream has computed the tensor."""
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record(torch.cuda.current_stream(self._device))
        buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        with torch.cuda.stream(self._side):
            self._side.wait_event(computed)
            buffer.copy_(tensor, non_blocking=True)
            tensor.record_stream(self._side)  # keeps the memory from being reused before it is copied
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._side)
        return _Copying(buffer, tensor, copied)


def link_to(device: torch.device) -> DeviceLink:
    """The link for a device."""
    return CudaLink(device) if device.type == "cuda" else CpuLink()


def as_tensor(values: Array) -> Tensor:
    """A tensor over the array's memory, bfloat16 included."""
    if values.dtype.name == "bfloat16":  # not a numpy type of torch's
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


@dataclass(frozen=True)
class Step:
    """Segments to run in order, and the ramp whose site is then reached; FINAL for the end of the model."""

    segments: range
    ramp: int
    active: bool = True
    threshold: float = CLOSED
    """Exactly a float32."""


class Schedule:
    """What a pass does under one plan, worked out once per plan.

    `steps` stops at active ramps only, so segments without one run in one loop; `shadow_steps` stops at every site.
    """

    def __init__(self, plan: Plan, ramps: int) -> None:
        self.plan = plan
        self.active = plan.active
        thresholds = dict(zip(plan.active, plan.thresholds.tolist(), strict=True))
        self.inactive = tuple(r for r in range(ramps) if r not in thresholds)
        self.steps = self._steps(list(plan.active), thresholds, ramps)
        self.shadow_steps = self._steps(list(range(ramps)), thresholds, ramps)

    @staticmethod
    def _steps(stops: list[int], thresholds: Mapping[int, float], ramps: int) -> tuple[Step, ...]:
        steps, begin = [], 0
        for ramp in stops:
            steps.append(Step(range(begin, ramp + 1), ramp, ramp in thresholds, thresholds.get(ramp, CLOSED)))
            begin = ramp + 1
        return (*steps, Step(range(begin, ramps + 1), FINAL))


@dataclass(frozen=True, slots=True)
class Output:
    """What arrived from one step: class scores [N, C], or for a ramp that is switched off its pooled vector [N, F]."""

    step: Step
    values: Array


class Engine:
    """Runs passes of one prepared model on one device."""

    def __init__(self, model: Model, heads: Sequence[Head], link: DeviceLink) -> None:
        self._model, self._heads, self._link = model, heads, link

    def run(self, inputs: Mapping[str, Array], schedule: Schedule, *, shadow: bool = False) -> Iterator[Output]:
        """Outputs of one pass in order, the model's own last; each is yielded while the pass goes on.

        inputs: arrays [N, ...]. shadow: also the pooled vectors of ramps that are switched off.
        """
        model, link = self._model, self._link
        state = model.start(link.upload(inputs))
        coming: deque[tuple[Step, Fetch]] = deque()
        for step in schedule.shadow_steps if shadow else schedule.steps:
            for k in step.segments:
                state = model.advance(k, state)
            if step.ramp == FINAL:
                coming.append((step, link.fetch(model.output(state).float())))
                break
            head = self._heads[step.ramp]
            say = head.answer if step.active else head.pool
            coming.append((step, link.fetch(say(model.site(state), model.mask(state)))))
            while coming and coming[0][1].ready():
                arrived, values = coming.popleft()
                yield Output(arrived, values.take())
        for arrived, values in coming:
            yield Output(arrived, values.take())


def warm_up(engine: Engine, inputs: Mapping[str, Array], schedules: Sequence[Schedule], times: int = 3) -> None:
    """Run passes nobody waits for, so that no request pays for compilation. Raises what the model raises."""
    with torch.inference_mode():
        for schedule in schedules:
            for _ in range(times):
                for _ in engine.run(inputs, schedule):
                    pass
