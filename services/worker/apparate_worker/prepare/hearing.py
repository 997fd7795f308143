"""What it costs a pass to hear a ramp, measured with the code that serves.

What a ramp computes is not all: its scores are read, asked whether somebody may leave, and kept for feedback, in Python
between two segments, whose data drives all that out of the caches. That is little beside a segment that takes a
millisecond, and a tenth of a whole pass that takes a seventh of one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from apparate.contract.resource import TensorSpec
from apparate.plan import Plan
from apparate_worker.batching import Batcher
from apparate_worker.engine import CpuLink, Engine, Schedule
from apparate_worker.guard import WorkerGuard
from apparate_worker.pending import Item, Pending
from apparate_worker.serving import Serving


class _Marked:
    """A model that notes when each segment begins and ends."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.marks: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def advance(self, k: int, state: Any) -> Any:
        self.marks.append(time.perf_counter())
        state = self._model.advance(k, state)
        self.marks.append(time.perf_counter())
        return state


class _Nobody:
    """Reports that nobody reads."""

    def wants_shadows(self, *, opened: bool) -> bool:
        return False

    def offer(self, done: object) -> None: ...


class Hearing:
    """Passes on the CPU in which all ramps are heard and nobody leaves."""

    def __init__(self, model: Any, heads: Sequence[Any], specs: Sequence[TensorSpec]) -> None:
        """model: in R+1 segments, with a ramp after each but the last."""
        self._loop, self._model, ramps = asyncio.new_event_loop(), _Marked(model), len(heads)
        self._serving = Serving(
            engine=Engine(self._model, heads, CpuLink()),
            batcher=Batcher(max_batch=1, max_delay_s=0.0, max_queue=1),
            inputs=specs,
            schedule=Schedule(Plan.of(1, range(ramps), [0.0] * ramps), ramps),
            guard=WorkerGuard(1e-3),
            reports=_Nobody(),
            loop=self._loop,
        )
        self._serving.here = True  # answers are taken at once: the loop does not run

    def times_ms(self, inputs: Mapping[str, Tensor]) -> tuple[list[float], list[float]]:
        """([R] of each segment that a ramp follows, [R] from its end to the start of the next) in one pass over [N]."""
        requests = [
            Pending(
                {name: values[i : i + 1].numpy() for name, values in inputs.items()},
                1,
                self._loop.create_future(),
                time.monotonic(),
            )
            for i in range(len(next(iter(inputs.values()))))
        ]
        self._model.marks.clear()
        with np.errstate(all="ignore"):  # as where it is served: inputs may hold anything
            self._serving.serve([Item(request, 0) for request in requests])
        for request in requests:
            request.future.result()  # raises what the model raised
        between = [(b - a) * 1e3 for a, b in zip(self._model.marks, self._model.marks[1:], strict=False)]
        return between[:-1:2], between[1::2]

    def close(self) -> None:
        """Let go of what it holds."""
        self._loop.close()
