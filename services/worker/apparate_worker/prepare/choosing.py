"""Which of the trained ramps a model keeps: few enough to watch all the time, different enough to be worth it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.adaptation.policy import Budget, none_fits
from apparate.catalog import RampCatalog
from apparate.contract.document import Document
from apparate_worker.prepare.profiling import Profile

MOST_RAMPS = 12  # tuning, shadow evaluation and feedback all pay for each; the best set of a few is found among these
LEAST_GAP = 0.04  # of the pass between two ramps: nearer ones say the same at the same time
LEAST_GAIN = 1e-3  # of the pass, on average: below it a ramp is kept for where it is, not for what it would add today


def choose(
    profile: Profile, leaves: npt.NDArray[np.bool_], most: int = MOST_RAMPS, gap: float = LEAST_GAP
) -> list[int]:
    """Indices of the ramps to keep, shallow to deep.

    leaves [N, R]: which held-out records each ramp could let go within the loss, were it alone.

    Greedy: each time the ramp that adds most to what the kept ones spare, when every record leaves at the first that
    lets it go; once none adds anything the one farthest from the others, for traffic that changes. None nearer than
    `gap` to a kept one. Ramps that answer after the plain pass ends are kept only if there are no others.
    """
    answers = ((profile.reach_ms + profile.overhead_ms) / profile.full_ms[:, None]).max(axis=0)
    place = (profile.reach_ms / profile.full_ms[:, None]).mean(axis=0)
    spares = np.where(leaves, 1 - answers, 0.0)
    useful = [r for r in range(len(answers)) if answers[r] < 1] or [int(answers.argmin())]
    kept: list[int] = []
    spared = np.zeros(len(leaves))
    while len(kept) < most:
        free = [r for r in useful if all(abs(place[r] - place[k]) >= gap for k in kept) and r not in kept]
        if not free:
            break
        best = max(free, key=lambda r: _worth(spares[:, r], spared, [abs(place[r] - place[k]) for k in kept]))
        kept.append(best)
        spared = np.maximum(spared, spares[:, best])
    return sorted(kept)


def _worth(spares: npt.NDArray[Any], spared: npt.NDArray[Any], distances: list[float]) -> tuple[float, float]:
    gain = float(np.maximum(spares - spared, 0).mean()) if len(spared) else 0.0
    return (gain if gain >= LEAST_GAIN else 0.0), min(distances, default=1.0)


def nothing_exits(document: Document, catalog: RampCatalog) -> str:
    """Why no ramp of a prepared model may be active under its document's budget, for people; empty when one may."""
    overhead = document.model.spec.budget.ramp_overhead
    if catalog.max_active_ramps(overhead):
        return ""
    return f"nothing will exit early: {none_fits(catalog, Budget(ramp_overhead=overhead))}"
