"""The serving model behind replay and what-if: one device, first come first served, exits that save no device time.

Batches form by age and size or by deadline; an answer leaves at its ramp while the pass runs on to its end; a decoder
defers the deep layers of tokens that left early until a later token, or the cap, brings them through together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apparate.adaptation.exits import Floats, exit_ramps
from apparate.catalog import RampCatalog


@dataclass(frozen=True)
class ServedBatch:
    """One pass: which requests, when it starts, the size it is padded to, how long each request had waited (ms)."""

    ids: tuple[int, ...]
    start: float
    size: int
    wait: tuple[float, ...]


@dataclass(frozen=True)
class Served:
    """A trace, served: the passes, the requests dropped, and when the device is done (ms)."""

    batches: tuple[ServedBatch, ...]
    dropped: tuple[int, ...]
    end: float


def serve_by_age(
    arrivals: Sequence[float], exec_ms: Mapping[int, float], *, max_batch: int, max_wait_ms: float
) -> Served:
    """Start when the device is idle and the batch is full or its oldest request has waited long enough.

    arrivals: rising times in ms; exec_ms: time of a pass by supported batch size. Batches are padded to the next
    supported size. Raises ValueError when no size is as large as `max_batch`.
    """
    if max(exec_ms) < max_batch:
        raise ValueError(f"largest supported batch is {max(exec_ms)}, asked for {max_batch}")
    batches, free, head = [], 0.0, 0
    while head < len(arrivals):
        full = arrivals[head + max_batch - 1] if head + max_batch <= len(arrivals) else np.inf
        start = max(free, min(float(full), arrivals[head] + max_wait_ms), arrivals[head])
        count = min(max_batch, bisect_right(arrivals, start) - head)
        size = min(s for s in exec_ms if s >= count)
        batches.append(_batch(arrivals, range(head, head + count), start, size))
        free, head = start + exec_ms[size], head + count
    return Served(tuple(batches), (), free)


def serve_by_deadline(arrivals: Sequence[float], exec_ms: Mapping[int, float], *, objective_ms: float) -> Served:
    """Start at once with the largest full batch that still meets its oldest request's deadline.

    A request that would miss its deadline even alone is dropped. Arguments as for `serve_by_age`.
    """
    batches, dropped, free, head = [], [], 0.0, 0
    while head < len(arrivals):
        start, deadline = max(free, arrivals[head]), arrivals[head] + objective_ms
        waiting = bisect_right(arrivals, start) - head
        fitting = [s for s in exec_ms if s <= waiting and start + exec_ms[s] <= deadline]
        if not fitting and start + exec_ms[min(exec_ms)] > deadline:
            dropped.append(head)
            head += 1
            continue
        size = max(fitting, default=min(exec_ms))
        count = min(size, waiting)
        batches.append(_batch(arrivals, range(head, head + count), start, size))
        free, head = start + exec_ms[size], head + count
    return Served(tuple(batches), tuple(dropped), free)


def _batch(arrivals: Sequence[float], ids: range, start: float, size: int) -> ServedBatch:
    return ServedBatch(tuple(ids), start, size, tuple(start - arrivals[i] for i in ids))


def release(
    errors: Floats,
    thresholds: Sequence[float],
    catalog: RampCatalog,
    active: Sequence[int],
    *,
    start: float,
    arrivals: Sequence[float],
) -> tuple[Floats, float]:
    """([N] response time of each request, time until which the device is busy) of one pass, in ms.

    An answer leaves at its ramp; the pass runs to the end for everyone and pays every ramp.
    """
    row = int(catalog.rows(np.array([len(errors)]))[0])
    exit_ms = catalog.exit_ms(active)[row]
    response: Floats = start + exit_ms[exit_ramps(errors, np.asarray(thresholds))] - np.asarray(arrivals, np.float64)
    return response, start + float(exit_ms[-1])


@dataclass(frozen=True)
class Decoded:
    """A decoded sequence, times in ms. Tokens that were never flushed have no label to agree or disagree with."""

    release: tuple[float, ...]
    flushes: tuple[tuple[int, ...], ...]
    """Tokens that went through the deep layers together, in order."""
    unlabelled: tuple[int, ...]
    busy_until: float

    @property
    def time_per_token(self) -> tuple[float, ...]:
        """Gaps between releases; a flush is charged to the token that needs it."""
        return tuple(float(gap) for gap in np.diff([0.0, *self.release]))

    @property
    def labelled(self) -> tuple[int, ...]:
        """Tokens whose deep answer is known."""
        return tuple(token for flush in self.flushes for token in flush)


def decode(
    errors: Sequence[float], threshold: float, *, head_ms: float, ramp_ms: float, tail_ms: Mapping[int, float], cap: int
) -> Decoded:
    """One sequence with one ramp: a token that leaves early waits for its deep layers with those before it.

    errors: the ramp's error for each token; tail_ms: time of the deep layers by number of tokens. The next token that
    does not leave brings all pending ones through with it; with `cap` pending they go through at once, and the token
    after waits.
    """
    leaves = exit_ramps(np.asarray(errors, np.float32)[:, None], np.array([threshold])) == 0
    clock, pending = 0.0, list[int]()
    released, flushes = list[float](), list[tuple[int, ...]]()
    for token, early in enumerate(leaves):
        clock += head_ms + ramp_ms
        pending.append(token)
        if early:
            released.append(clock)
        if not early or len(pending) >= cap:
            clock += tail_ms[len(pending)]
            flushes.append(tuple(pending))
            pending.clear()
        if not early:
            released.append(clock)
    return Decoded(tuple(released), tuple(flushes), tuple(pending), clock)
