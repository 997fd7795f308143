"""From outcomes to figures: percentiles, agreement with its bound, exit rates. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate_demo.client import Outcome
from apparate_demo.oip import FINAL

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PERCENTILES = (25, 50, 95, 99)
ROLLING = 1000  # answers in the window whose worst agreement is reported
CONFIDENCE = 0.95  # of the lower bound of the agreement


@dataclass(frozen=True, eq=False)
class Pair:
    """One slice, sent to the plain model and to the one with exits: the same arrivals, the same inputs."""

    plain: Outcome
    exits: Outcome


@dataclass(frozen=True, eq=False)
class Answers:
    """All answers of one side in the order they were scheduled; latencies in milliseconds.

    latency: from the time the trace says;  from_sent: from the time the request left;  lag: between the two
    """

    latency: Floats
    from_sent: Floats
    label: Ints
    exit_ramp: Ints
    revision: Ints
    error: str = ""

    def __len__(self) -> int:
        return len(self.label)

    @property
    def lag(self) -> Floats:
        """[n] how much later than scheduled the client sent each request, milliseconds."""
        return self.latency - self.from_sent


def collect(outcomes: Sequence[Outcome]) -> Answers:
    """The answers of several slices, one after the other."""

    def all_of(field: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(o, field) for o in outcomes])

    done = all_of("done")
    errors = [o.error for o in outcomes if o.error]
    return Answers(
        latency=(done - all_of("scheduled")) * 1e3,
        from_sent=(done - all_of("sent")) * 1e3,
        label=all_of("label"),
        exit_ramp=all_of("exit_ramp"),
        revision=all_of("revision"),
        error=errors[0] if errors else "",
    )


def percentiles(values: Floats) -> dict[str, float]:
    """{"p25_ms": ..., ...} of values in milliseconds; requests without an answer count as infinitely slow."""
    filled = np.where(np.isnan(values), np.inf, values)
    return {f"p{p}_ms": float(np.percentile(filled, p, method="higher")) for p in PERCENTILES}


def agrees(plain: Answers, exits: Answers) -> Bools:
    """[n] whether both sides gave the same answer to the same input; pairs with a missing answer are left out."""
    both = (plain.label >= 0) & (exits.label >= 0)
    same: Bools = (plain.label == exits.label)[both]
    return same


def lower_bound(agreeing: int, total: int, confidence: float = CONFIDENCE) -> float:
    """Exact (Clopper-Pearson) one-sided lower bound of a share: the p where P[so many agree] = 1 - confidence."""
    if total == 0 or agreeing == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _at_least(agreeing, total, middle) > 1 - confidence else (middle, high)
    return low


def _at_least(k: int, n: int, p: float) -> float:
    """P[Bin(n, p) >= k], summed from the largest count down."""
    if p >= 1:
        return 1.0
    if p <= 0:
        return float(k == 0)
    counts = np.arange(n - k + 1)  # failures
    steps = np.log((n - counts[:-1]) / (counts[:-1] + 1))
    logs = np.concatenate([[0.0], np.cumsum(steps)]) + counts * math.log1p(-p) + (n - counts) * math.log(p)
    return float(np.exp(logs).sum())


def rolling_agreement(same: Bools, window: int = ROLLING) -> Floats:
    """[n - w + 1] agreement over each run of `window` answers (all of them when there are fewer)."""
    if not len(same):
        return np.zeros(0)
    width = min(window, len(same))
    sums = np.concatenate([[0], np.cumsum(same, dtype=np.int64)])
    rolled: Floats = (sums[width:] - sums[:-width]) / width
    return rolled


def exit_rates(exits: Answers, layers: Sequence[str]) -> dict[str, float]:
    """Share of the answers that left at each ramp, by layer name, and `final`; shares of zero are left out."""
    answered = exits.exit_ramp[exits.label >= 0]
    if not len(answered):
        return {}
    ramps, counts = np.unique(answered, return_counts=True)
    named = {
        ("final" if r == FINAL else layers[r]): float(c) / len(answered) for r, c in zip(ramps, counts, strict=True)
    }
    final = named.pop("final", 0.0)
    return {**named, "final": final}


def side(answers: Answers, throughput: Sequence[float]) -> dict[str, float]:
    """The figures of one side: percentiles of the response time, and the median throughput at saturation."""
    rate = float(np.median(throughput)) if len(throughput) else 0.0
    return {**percentiles(answers.latency), "throughput_rps": rate}


def comparison(
    pairs: Sequence[Pair],
    *,
    layers: Sequence[str],
    budget: float,
    throughput: Mapping[str, Sequence[float]],
) -> dict[str, Any]:
    """The part of the report that outcomes alone give."""
    plain, exits = collect([p.plain for p in pairs]), collect([p.exits for p in pairs])
    same = agrees(plain, exits)
    rolling = rolling_agreement(same)
    vanilla, apparate = side(plain, throughput["plain"]), side(exits, throughput["exits"])
    return {
        "vanilla": vanilla,
        "apparate": apparate,
        "saving_p50": 1 - apparate["p50_ms"] / vanilla["p50_ms"],
        "agreement": float(same.mean()) if len(same) else 0.0,
        "agreement_lower": lower_bound(int(same.sum()), len(same)),
        "agreement_worst_1000": float(rolling.min()) if len(rolling) else 0.0,
        "budget": budget,
        "exit_rates": exit_rates(exits, layers),
        "p95_ratio": apparate["p95_ms"] / vanilla["p95_ms"],
        "throughput_ratio": _ratio(throughput),
        "from_sent": {"vanilla": percentiles(plain.from_sent), "apparate": percentiles(exits.from_sent)},
        "client_lag": {"vanilla": percentiles(plain.lag), "apparate": percentiles(exits.lag)},
        "n": len(same),
        "errors": int((plain.label < 0).sum() + (exits.label < 0).sum()),
        "first_error": plain.error or exits.error,
        "saving_p50_by_pair": [_saving(p) for p in pairs],
    }


def _ratio(throughput: Mapping[str, Sequence[float]]) -> float:
    """Median over the rounds of exits / plain: rounds are neighbours in time, so the machine's drift cancels."""
    ratios = [e / p for e, p in zip(throughput["exits"], throughput["plain"], strict=True) if p > 0]
    return float(np.median(ratios)) if ratios else 0.0


def _saving(pair: Pair) -> float:
    plain, exits = collect([pair.plain]), collect([pair.exits])
    return 1 - percentiles(exits.latency)["p50_ms"] / percentiles(plain.latency)["p50_ms"]
