"""Which of the trained ramps a model keeps: few enough to watch all the time, far enough apart to differ."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apparate_worker.prepare.profiling import Profile

MOST_RAMPS = 12  # tuning, shadow evaluation and feedback all pay for each; the best set of a few is found among these
LEAST_GAP = 0.04  # of the pass between two ramps: nearer ones say the same at the same time


def choose(profile: Profile, exits: Sequence[float], most: int = MOST_RAMPS, gap: float = LEAST_GAP) -> list[int]:
    """Indices of the ramps to keep, shallow to deep.

    Taken in the order of what each would save alone, the best first: the share of records it could let go within the
    loss, times the part of the pass that they are spared. One nearer than `gap` to a better one is left out. Ramps that
    answer later than the pass ends are kept only if there are no others.
    """
    answers = (profile.reach_ms + profile.overhead_ms) / profile.full_ms[:, None]
    spared = 1 - answers.max(axis=0)
    saving = np.asarray(exits) * np.maximum(spared, 0)
    place = (profile.reach_ms / profile.full_ms[:, None]).mean(axis=0)
    kept: list[int] = []
    for r in sorted(range(len(saving)), key=lambda r: (-saving[r], r)):
        far = all(abs(place[r] - place[k]) >= gap for k in kept)
        if len(kept) < most and far and (spared[r] > 0 or not kept):
            kept.append(r)
    return sorted(kept)
