"""The plain model and the one with exits, both in a cluster: the same slices of traffic to one and then the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from apparate_demo import load
from apparate_demo.assets import asset
from apparate_demo.client import Client, Target
from apparate_demo.results import ROLLING, Pair, agrees, collect, percentiles, rolling_agreement
from apparate_demo.run import SETTLE_S, SIDES, TRACE


def compare(
    targets: Mapping[str, Sequence[Target]],
    traffic: Path,
    *,
    rate: float,
    pairs: int,
    slice_s: float,
    tell: Callable[[dict[str, Any]], None],
) -> None:
    """Send `pairs` slices to both sides; the k-th targets of both (one for each protocol) take turns.

    Raises ClientError.
    """
    with np.load(traffic) as arrays:
        inputs = len(arrays[arrays.files[0]])
    gaps = load.read_gaps(asset(TRACE))
    arrivals = load.scaled_arrivals(gaps, int(rate * slice_s * pairs), rate)
    done: list[tuple[str, Pair]] = []
    with Client(traffic) as client:
        for number, piece in enumerate(load.cut(arrivals, seconds=slice_s, inputs=inputs)):
            turn = number % len(targets["exits"])
            outcomes = {}
            for side in SIDES if (number // len(targets["exits"])) % 2 == 0 else SIDES[::-1]:
                outcomes[side] = client.run(targets[side][turn], piece)
                time.sleep(SETTLE_S)
            done.append((targets["exits"][turn].protocol, Pair(**outcomes)))
            tell({"kind": "pair", "pair": number, **figures([done[-1]])})
    half = done[len(done) // 2 :]  # by then the plan has had traffic to learn from
    tell({"kind": "compared", "all": figures(done), "second_half": figures(half), **by_protocol(half)})


def by_protocol(pairs: Sequence[tuple[str, Pair]]) -> dict[str, Any]:
    """The figures of each protocol's pairs."""
    return {name: figures([one for one in pairs if one[0] == name]) for name in sorted({name for name, _ in pairs})}


def figures(pairs: Sequence[tuple[str, Pair]]) -> dict[str, Any]:
    """Medians of both sides in milliseconds from the time that the request left, agreement, failures."""
    plain, exits = collect([one.plain for _, one in pairs]), collect([one.exits for _, one in pairs])
    same = agrees(plain, exits)
    return {
        "plain_p50_ms": percentiles(plain.from_sent)["p50_ms"],
        "exits_p50_ms": percentiles(exits.from_sent)["p50_ms"],
        "answers": len(same),
        "agreement": float(same.mean()) if len(same) else 0.0,
        f"agreement_worst_{ROLLING}": float(rolling_agreement(same).min(initial=1.0)),
        "early": float((exits.exit_ramp >= 0).mean()),
        "revision": int(exits.revision.max(initial=0)),
        "failed": int((plain.label < 0).sum() + (exits.label < 0).sum()),
        "error": plain.error or exits.error,
    }
