"""Rounds in which everything is measured once, in an order that changes, and what they say of two sides."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Sample = dict[str, float]
Samples = dict[str, list[Sample]]
UNITS = {"rps": "requests/s", "p50_ms": "median, ms", "p99_ms": "p99, ms", "cores": "cores", "failed": "failed"}


def measure(
    sides: Mapping[str, Callable[[], Sample]], rounds: int, tell: Callable[[str], None], warm: bool = True
) -> Samples:
    """Every side once a round; each round starts with another one. A round before the first warms up."""
    names = list(sides)
    found: Samples = {name: [] for name in names}
    for number in range(-1 if warm else 0, rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            sample = dict(sides[name]())
            sample["rps"] = sample["requests"] / sample["seconds"]
            if number >= 0:
                found[name].append(sample)
                tell(f"  round {number + 1} of {rounds}, {name}: {sample['rps']:,.0f}/s, p99 {sample['p99_ms']:.2f} ms")
    return found


def summary(samples: Samples) -> dict[str, dict[str, float]]:
    """By side: medians of what was measured."""
    return {
        name: {key: statistics.median(one[key] for one in each) for key in UNITS if key in each[0]}
        for name, each in samples.items()
    }


def ratio(samples: Samples, ours: str, theirs: Sequence[str], key: str = "rps", best: Callable[..., Any] = max) -> Any:
    """Median, least and greatest over the rounds of ours against the best of theirs in the same round."""
    each = [samples[ours][i][key] / best(samples[name][i][key] for name in theirs) for i in range(len(samples[ours]))]
    return {"median": statistics.median(each), "low": min(each), "high": max(each), "rounds": len(each)}
