"""One pass: segments in order, a ramp's scores as soon as they are there, and the model's own at the end.

No sockets, no metrics, no clock. Everything here runs in the one device thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apparate.feedback import FINAL
from apparate.plan import Plan

Array = npt.NDArray[Any]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
CLOSED = 0.0  # the threshold that lets nobody go
Says = tuple[tuple[int, bool], ...]
"""Ramps that a pass hears, in order: True for their scores, False for the pooled vector of one that is off."""


class Model(Protocol):
    """A model in segments; see `apparate_worker.model.segments`."""

    @property
    def segments(self) -> Sequence[Any]:
        """R+1 callables."""

    def start(self, inputs: Mapping[str, Tensor], says: Says) -> Any:
        """The state before the first segment; `says`: what the pass wants to hear on its way."""

    def advance(self, k: int, state: Any) -> Any:
        """Run segment k; afterwards the state sits at site k."""

    def arrange(self, opened: Sequence[int], says: Says) -> None:
        """Get ready for passes in which rows may leave at these ramps and that hear this. Any thread; passes go on."""

    def site(self, state: Any) -> Any:
        """What the head of the site's ramp reads: the activation."""

    def mask(self, state: Any) -> Tensor | None:
        """[N, L] 1 for a token and 0 for padding, if there is one."""

    def output(self, state: Any) -> Tensor:
        """Scores [N, C] after the last segment."""

    def likeness(self, state: Any) -> Hashable:
        """Equal for states that stand at the same place and can be joined."""

    def select(self, state: Any, rows: Sequence[int]) -> Any:
        """A state of its own for some of the rows, in the order given."""

    def join(self, states: Sequence[Any]) -> Any:
        """One state for the rows of several that stand at the same place and differ in nothing but N."""


class Head(Protocol):
    """A ramp's head; see `apparate_worker.model.ramps`."""

    def pool(self, activation: Any, mask: Tensor | None) -> Tensor:
        """[N, F] float32: what the head reads of an activation."""

    def answer(self, activation: Any, mask: Tensor | None) -> Tensor:
        """[N, C] float32 class scores, already divided by the head's temperature."""


class Fetch(Protocol):
    """A tensor on its way to the host."""

    def ready(self) -> bool:
        """Whether `take` would return at once."""

    def take(self) -> Array:
        """The values on the host; waits for them, and for nothing that was launched later."""


class DeviceLink(Protocol):
    """The way to the device and back."""

    immediate: bool
    """Whether a fetched tensor is there at once, so that it costs nothing to look at it before the pass goes on."""

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

    immediate = True

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

    immediate = False

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
    if values.dtype == BFLOAT16:  # not a numpy type of torch's
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
        self.plan, self._ramps = plan, ramps
        self.active = plan.active
        thresholds = dict(zip(plan.active, plan.thresholds.tolist(), strict=True))
        self.inactive = tuple(r for r in range(ramps) if r not in thresholds)
        self.opened = tuple(r for r, threshold in thresholds.items() if threshold > CLOSED)
        self.says: Says = tuple((r, True) for r in plan.active)
        self.shadow_says: Says = tuple((r, r in thresholds) for r in range(ramps))
        self.steps = self._steps(list(plan.active), thresholds, ramps)
        self.shadow_steps = self._steps(list(range(ramps)), thresholds, ramps)

    @cached_property
    def without_ramps(self) -> Schedule:
        """The same plan's revision with no ramp at all."""
        return Schedule(Plan(self.plan.revision, (), self.plan.catalog), self._ramps)

    @cached_property
    def closed(self) -> Schedule:
        """The same ramps, heard, but with nobody leaving."""
        return Schedule(self.plan.closed(), self._ramps)

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


@dataclass(slots=True)
class Journey:
    """Rows on their way through the model: `at` is the next segment they run."""

    state: Any
    schedule: Schedule
    shadow: bool = False
    """Also the pooled vectors of ramps that are switched off."""
    at: int = 0


class Engine:
    """Runs rows through one prepared model on one device."""

    def __init__(self, model: Model, heads: Sequence[Head], link: DeviceLink) -> None:
        self._model, self._heads, self._link = model, heads, link
        self.divides = link.immediate
        """Whether rows can part: what a ramp said must be known before the next segment is launched."""
        self.steps = 0
        """Segments run so far: whoever watches the device looks whether this goes on."""

    def start(self, inputs: Mapping[str, Array], schedule: Schedule, *, shadow: bool = False) -> Journey:
        """The beginning of a pass over inputs [N, ...]."""
        says = schedule.shadow_says if shadow else schedule.says
        return Journey(self._model.start(self._link.upload(inputs), says), schedule, shadow)

    def run(self, journey: Journey, *, pauses: bool = False, waits: bool = False) -> Iterator[Output | None]:
        """Outputs from where the journey stands, in order, the model's own last; each is yielded while it goes on.

        pauses: yield None between segments too. waits: yield each output before anything after it is launched. Then,
        and where outputs are there at once anyway, the journey may be left at any yield, and run again later, divided
        or joined with others.
        """
        model, link = self._model, self._link
        coming: deque[tuple[Step, Fetch]] = deque()
        for step in journey.schedule.shadow_steps if journey.shadow else journey.schedule.steps:
            if step.segments.stop <= journey.at:
                continue  # behind us
            for k in range(max(journey.at, step.segments.start), step.segments.stop):
                journey.state = model.advance(k, journey.state)
                journey.at = k + 1
                self.steps += 1
                if pauses and journey.at < step.segments.stop:
                    yield None
            coming.append((step, link.fetch(self._say(step, journey.state))))
            while coming and (waits or coming[0][1].ready()):
                arrived, values = coming.popleft()
                yield Output(arrived, values.take())
        for arrived, values in coming:
            taken = values.take()  # on a GPU the device's work is waited for here
            self.steps += 1
            yield Output(arrived, taken)

    def _say(self, step: Step, state: Any) -> Tensor:
        model = self._model
        if step.ramp == FINAL:
            return model.output(state).float()
        head = self._heads[step.ramp]
        say = head.answer if step.active else head.pool
        return say(model.site(state), model.mask(state))

    def arrange(self, schedule: Schedule) -> None:
        """Get ready for passes under a schedule, which may begin at once: without this they are only slower."""
        self._model.arrange(schedule.opened, schedule.says)

    def place(self, journey: Journey) -> Hashable:
        """Equal for journeys that can be joined."""
        return (id(journey.schedule), journey.shadow, journey.at, self._model.likeness(journey.state))

    def part(self, journey: Journey, rows: Sequence[int]) -> Journey:
        """A journey of its own for some of the rows."""
        return replace(journey, state=self._model.select(journey.state, rows))

    def join(self, journeys: Sequence[Journey]) -> Journey:
        """One journey for several that stand at the same place."""
        if len(journeys) == 1:
            return journeys[0]
        return replace(journeys[0], state=self._model.join([one.state for one in journeys]))


def warm_up(engine: Engine, inputs: Mapping[str, Array], schedules: Sequence[Schedule], times: int = 3) -> None:
    """Run passes nobody waits for, so that no request pays for compilation. Raises what the model raises."""
    with torch.inference_mode():
        for schedule in schedules:
            for _ in range(times):
                for _ in engine.run(engine.start(inputs, schedule)):
                    pass
