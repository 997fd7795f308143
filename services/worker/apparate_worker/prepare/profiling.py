"""Latencies of a prepared model by batch size: how long to reach each site, to run each ramp, and the whole pass.

Every repetition runs all batch sizes in turn, so that a disturbance of the machine meets all of them, and the lower
quartile is taken over repetitions. Times are of the work as it is served: with the call of each segment, and with all
that serving does to hear a ramp.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apparate_worker.model.errors import InvalidProfile
from apparate_worker.model.ramps import RampHead, RampShape
from apparate_worker.prepare.bootstrap import BootstrapData
from apparate_worker.prepare.hearing import Hearing
from apparate_worker.release import scores

BUDGET_S = 12.0  # of measuring, whatever the model's size
WARM, LEAST, MOST = 3, 7, 60  # repetitions
QUANTILE = 0.25  # of the repetitions: on a machine that does other things half of them may be disturbed
LEAST_STEP = 0.1  # of a segment's time is its own, whatever a border seems to cost
DISAGREE = 0.5  # the segments' times may differ from the whole pass by this share before a profile is refused
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Profile:
    """Milliseconds by batch size: T [B, R], o [B, R], F [B]."""

    batch_sizes: tuple[int, ...]
    reach_ms: Floats
    overhead_ms: Floats
    full_ms: Floats


@dataclass(frozen=True, eq=False)
class InGraph:
    """More of a model whose parts have borders that the whole has not, and whose ramps are in its graph."""

    whole: Any
    """Uncut: a pass without open exits has no borders."""
    heard: Any
    """In segments that say what their ramps do; every ramp bears what its border costs."""


class Stopwatch:
    """Marks along the work of a device, and the milliseconds between them; on a GPU they are events in its stream."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []

    def start(self) -> None:
        """Forget all marks and set the first, once the device has nothing left to do."""
        if self._cuda:
            torch.cuda.synchronize()
        self._marks.clear()
        self.mark()

    def mark(self) -> None:
        """Set the next mark."""
        if self._cuda:
            event: Any = cast(Any, torch.cuda.Event)(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def between(self) -> list[float]:
        """Milliseconds between neighbouring marks."""
        if self._cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in zip(self._marks, self._marks[1:], strict=False)]
        return [(b - a) * 1e3 for a, b in zip(self._marks, self._marks[1:], strict=False)]


def batch_sizes(most: int) -> tuple[int, ...]:
    """Powers of two up to `most`, and `most` itself."""
    return tuple(sorted({2**i for i in range(most.bit_length()) if 2**i <= most} | {most}))


def profile(
    model: Any,
    heads: Sequence[Any],
    data: BootstrapData,
    sizes: Sequence[int],
    device: torch.device,
    step: Callable[[float], None],
    budget_s: float = BUDGET_S,
    in_graph: InGraph | None = None,
) -> Profile:
    """Measure. Raises InvalidProfile when the parts do not add up to the whole, on a machine too busy to measure on."""
    watch = Stopwatch(device)
    batches = [data.take(data.typical(size), device) for size in sizes]
    parts: list[list[list[float]]] = [[] for _ in sizes]
    ramps: list[list[list[float]]] = [[] for _ in sizes]
    before: list[list[list[float]]] = [[] for _ in sizes]
    whole: list[list[float]] = [[] for _ in sizes]
    heard = model if in_graph is None else in_graph.heard
    hearing = Hearing(heard, heads, data.specs) if heads and device.type == "cpu" else None
    began, done = time.perf_counter(), -WARM
    with torch.inference_mode(), closing(hearing) if hearing is not None else nullcontext():
        while done < LEAST or (done < MOST and time.perf_counter() - began < budget_s):
            for b, inputs in enumerate(batches):
                total = _plain(model if in_graph is None else in_graph.whole, inputs, watch)
                segments = _segments(model, inputs, watch)
                reached, overheads = (
                    hearing.times_ms(inputs) if hearing is not None else _ramps(heard, heads, inputs, watch)
                )
                if done >= 0:
                    whole[b].append(total)
                    parts[b].append(segments)
                    before[b].append(reached)
                    ramps[b].append(overheads)
            done += 1
            step(min(max(done / MOST, (time.perf_counter() - began) / max(budget_s, 1e-9), 0.0), 1.0))
    segment_ms, overhead, to_ramps = (
        np.array([np.quantile(one, QUANTILE, axis=0) for one in each]) for each in (parts, ramps, before)
    )
    if in_graph is not None:
        full = np.array([np.quantile(one, QUANTILE) for one in whole])
        return in_one(tuple(sizes), segment_ms, np.maximum(to_ramps - segment_ms[:, :-1], 0.0) + overhead, full)
    fastest, usual = (np.array([found(one) for one in whole]) for found in (np.min, _usual))
    return fitted(tuple(sizes), np.cumsum(segment_ms, axis=1), overhead, fastest, usual)


def _usual(times: Sequence[float]) -> float:
    return float(np.quantile(times, QUANTILE))


def in_one(sizes: tuple[int, ...], steps_ms: Floats, ramps_ms: Floats, full_ms: Floats) -> Profile:
    """A profile of a model that runs as one piece until it is cut.

    steps_ms [B, R+1] its segments one by one; ramps_ms [B, R] how much longer a segment takes with its ramp; full_ms
    [B] the whole at once. What the segments take in excess of the whole is what the borders cost, the same for each: it
    is part of every ramp's overhead, and the sites share the whole's time as the rest of the segments' times do.
    Raises InvalidProfile where a time is not positive.
    """
    if (steps_ms <= 0).any() or (full_ms <= 0).any():
        raise InvalidProfile("a segment took no time at all: the machine is too busy to measure on, try again")
    borders = steps_ms.shape[1] - 1
    border = np.maximum(steps_ms.sum(axis=1) - full_ms, 0.0) / max(borders, 1)
    inner = np.maximum(steps_ms - border[:, None], LEAST_STEP * steps_ms)
    reach = full_ms[:, None] * np.cumsum(inner, axis=1) / inner.sum(axis=1, keepdims=True)
    return Profile(sizes, reach[:, :-1], ramps_ms + border[:, None], full_ms)


def fitted(
    sizes: tuple[int, ...], reach_ms: Floats, overhead_ms: Floats, full_ms: Floats, usual_ms: Floats | None = None
) -> Profile:
    """A profile from segments' times: `reach_ms` [B, R+1] to the end of the pass, `full_ms` the fastest whole pass.

    Short segments stand a busy machine much better than whole passes do, so the whole is their sum. usual_ms: a whole
    pass that was disturbed as much as the segments were; they may take so long.
    Raises InvalidProfile where a time is not positive, or segments and whole differ too much to be of one pass.
    """
    steps = np.diff(reach_ms, axis=1, prepend=0.0)
    if (steps <= 0).any():
        b, r = np.argwhere(steps <= 0)[0]
        raise InvalidProfile(f"segment {r} took {steps[b, r]:.4f} ms at batch size {sizes[b]}, must be positive")
    parts = reach_ms[:, -1]
    off = np.maximum(1 - parts / full_ms, parts / (full_ms if usual_ms is None else usual_ms) - 1)
    if (off > DISAGREE).any():
        b = int(off.argmax())
        raise InvalidProfile(
            f"at batch size {sizes[b]} the segments take {reach_ms[b, -1]:.3f} ms, a whole pass {full_ms[b]:.3f} ms: "
            "the machine is too busy to measure on, try again"
        )
    return Profile(sizes, reach_ms[:, :-1], overhead_ms, reach_ms[:, -1])


def _plain(model: Any, inputs: Mapping[str, Tensor], watch: Stopwatch) -> float:
    watch.start()
    state = model.start(inputs)
    for k in range(len(model.segments)):
        model.advance(k, state)
    scores(model.output(state).float().cpu().numpy())
    watch.mark()
    return watch.between()[0]


def _segments(model: Any, inputs: Mapping[str, Tensor], watch: Stopwatch) -> list[float]:
    watch.start()
    state = model.start(inputs)
    for k in range(len(model.segments)):
        model.advance(k, state)
        if k < len(model.segments) - 1:
            watch.mark()
    scores(model.output(state).float().cpu().numpy())
    watch.mark()
    return watch.between()


def _ramps(
    model: Any, heads: Sequence[Any], inputs: Mapping[str, Tensor], watch: Stopwatch
) -> tuple[list[float], list[float]]:
    """Times of (each segment that a ramp follows, the ramp right after it), as a pass on a GPU meets them: the copy of
    what the ramp says goes over a side stream, and the host hears it, while the pass goes on."""
    watch.start()
    state = model.start(inputs, tuple((r, True) for r in range(len(heads))))
    for k, head in enumerate(heads):
        model.advance(k, state)
        watch.mark()
        head.answer(model.site(state), model.mask(state))
        watch.mark()
    times = watch.between()
    return times[::2], times[1::2]


def pooling_costs(
    model: Any,
    shapes: Sequence[Sequence[RampShape]],
    widths: Sequence[Sequence[int]],
    data: BootstrapData,
    sizes: Sequence[int],
    device: torch.device,
    repetitions: int = 9,
) -> tuple[list[Floats], Floats]:
    """(by site: [S, B] milliseconds of a ramp of each shape, [B] of the whole pass), roughly and before training."""
    heads = [
        [_empty_head(shape, width, device) for shape, width in zip(*one, strict=True)]
        for one in zip(shapes, widths, strict=True)
    ]
    watch = Stopwatch(device)
    times: list[list[list[list[float]]]] = [[[[] for _ in sizes] for _ in one] for one in heads]
    whole: list[list[float]] = [[] for _ in sizes]
    with torch.inference_mode():
        for _ in range(repetitions):
            for b, size in enumerate(sizes):
                inputs = data.take(data.typical(size), device)
                whole[b].append(_plain(model, inputs, watch))
                state = model.start(inputs)
                for k, some in enumerate(heads):
                    model.advance(k, state)
                    for s, head in enumerate(some):
                        watch.start()
                        head.answer(model.site(state), model.mask(state))
                        watch.mark()
                        times[k][s][b].append(watch.between()[0])
    return [np.median(np.array(one), axis=2) for one in times], np.min(np.array(whole), axis=1)


def _empty_head(shape: RampShape, width: int, device: torch.device) -> RampHead:
    return RampHead(shape, torch.zeros(2, width, device=device), torch.zeros(2, device=device), 1.0)


def affordable(costs: Floats, full_ms: Floats, overhead: float) -> list[int]:
    """Which shapes of a site may be chosen from: the cheapest, and all that cost hardly more than it.

    costs [S, B], full_ms [B]; hardly: by less than half of the ramp budget `overhead`, a share of the whole pass.
    """
    cheapest = int((costs / full_ms).max(axis=1).argmin())
    extra = ((costs - costs[cheapest]) / full_ms).max(axis=1)
    return [s for s in range(len(costs)) if s == cheapest or extra[s] <= overhead / 2]
