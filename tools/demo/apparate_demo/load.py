"""When requests are sent: the arrivals of a real trace, scaled to a load; and how a run is cut into slices.

Open loop: a request is sent when the trace says so, whether or not earlier ones have been answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MIN_SLICE_S, MAX_SLICE_S = 1.0, 6.0
PAIRS_WANTED = 10  # so that drift of the machine hits both alike; fewer when slices would get shorter than a second


def read_gaps(path: Path) -> Floats:
    """Seconds between the arrivals of a trace: one column of arrival times with a header. Raises ValueError."""
    gaps: Floats = np.diff(np.loadtxt(path, skiprows=1, dtype=np.float64))
    if len(gaps) < 2 or (gaps < 0).any() or not gaps.sum() > 0:
        raise ValueError(f"{path} is no list of rising arrival times")
    return gaps


def scaled_arrivals(gaps: Floats, count: int, rate: float) -> Floats:
    """[count] arrival times from 0 at `rate` requests a second: the trace's first gaps (looped), all by one factor.

    One factor for the whole run keeps what the trace has: its bursts, and its slow changes of rate, too.
    """
    taken = np.resize(gaps, count)
    arrivals: Floats = np.cumsum(taken) - taken[0]
    arrivals *= count / rate / taken.sum()
    return arrivals


def burstiness(arrivals: Floats) -> float:
    """Squared coefficient of variation of the inter-arrival times: 1 for Poisson arrivals, above it for bursts."""
    gaps = np.diff(arrivals)
    return float(gaps.var() / gaps.mean() ** 2) if len(gaps) > 1 and gaps.mean() > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Slice:
    """A few seconds of traffic: `arrivals` [n] seconds from its start, and `items` [n], which input each one sends."""

    index: int
    seconds: float
    arrivals: Floats
    items: Ints

    def __len__(self) -> int:
        return len(self.items)


def cut(arrivals: Floats, *, seconds: float, inputs: int) -> list[Slice]:
    """Arrivals cut into slices of `seconds`; the inputs are taken in order and looped over the whole run."""
    items = np.arange(len(arrivals), dtype=np.int64) % inputs
    number = (arrivals // seconds).astype(int)
    slices = [Slice(i, seconds, arrivals[number == i] - i * seconds, items[number == i]) for i in range(number[-1] + 1)]
    return [s for s in slices if len(s)]


def slice_seconds(seconds: float) -> tuple[int, float]:
    """(pairs, length of a slice): a run of `seconds` is that many pairs, each one slice plain and one with exits."""
    length = min(max(seconds / (2 * PAIRS_WANTED), MIN_SLICE_S), MAX_SLICE_S)
    pairs = max(round(seconds / (2 * length)), 1)
    return pairs, seconds / (2 * pairs)


def plan_slices(gaps: Floats, *, seconds: float, rate: float, inputs: int) -> list[Slice]:
    """The slices of a run of `seconds` at `rate` requests a second; each is sent twice, plain and with exits."""
    pairs, length = slice_seconds(seconds)
    count = max(int(rate * pairs * length), pairs, 2)
    return cut(scaled_arrivals(gaps, count, rate), seconds=length, inputs=inputs)


def describe(slices: list[Slice], capacity: float) -> dict[str, Any]:
    """What the arrivals are like: burstiness, and load of the calmest and the busiest slice as shares of capacity."""
    gaps = np.concatenate([np.diff(s.arrivals) for s in slices])
    loads = [len(s) / s.seconds / capacity for s in slices]
    scv = float(gaps.var() / gaps.mean() ** 2) if len(gaps) > 1 else 0.0
    return {"inter_arrival_scv": scv, "slice_load_min": min(loads), "slice_load_max": max(loads)}
