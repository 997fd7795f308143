"""A behavioural twin of the paper's released tuner, oddities included, to compare with.

It treats ramp 0 as "none found", scores a move that improves agreement as if it cost some, never backs off, and does
not allow the budget itself. Same thresholds as the released code on random tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from apparate.adaptation.exits import Replay, check_window, replay
from apparate.catalog import RampCatalog
from apparate.feedback import Records

FIRST_STEP, LEAST_STEP = 0.01, 0.001
DECIMALS = 4
NO_CHANGE = 1e-12  # of a saving; less is rounding


@dataclass(frozen=True)
class ArtifactLike:
    """Where the released tuner would stop, after how many moves."""

    replay: Replay
    moves: int


@dataclass(frozen=True)
class _Pass:
    """One look at every ramp that is not pinned."""

    winner: int | None
    plateaus: tuple[int, ...]
    unchanged: int


def artifact_like(
    records: Records,
    catalog: RampCatalog,
    active: Sequence[int],
    max_loss: float,
    *,
    pinned: Mapping[int, float] | None = None,
) -> ArtifactLike:
    """Tune `records` as the released code does; pinned: positions whose thresholds stay. Empty windows: ValueError."""
    check_window(records, active)
    fixed = dict(pinned or {})
    thresholds = [fixed.get(j, 0.0) for j in range(len(active))]
    steps, moves = [FIRST_STEP] * len(active), 0
    current = replay(records, thresholds, catalog, active)
    while True:
        seen = _look(records, catalog, active, max_loss, current, steps, fixed)
        taken = _taken(seen, len(active))
        raised = None if taken is None else round(current.thresholds[taken] + steps[taken], DECIMALS)
        if taken is not None and raised is not None and raised <= 1:
            moves += 1
            current = replay(records, _with(current.thresholds, taken, raised), catalog, active)
            for j in {taken, *seen.plateaus}:
                steps[j] *= 2
        elif any(round(step, DECIMALS) > LEAST_STEP for step in steps):
            steps = [step / 2 if round(step, DECIMALS) > LEAST_STEP else step for step in steps]
        else:
            return ArtifactLike(current, moves)


def _look(
    records: Records,
    catalog: RampCatalog,
    active: Sequence[int],
    max_loss: float,
    current: Replay,
    steps: Sequence[float],
    pinned: Mapping[int, float],
) -> _Pass:
    winner, least, plateaus, unchanged = None, np.inf, [], 0
    for j in (j for j in range(len(active)) if j not in pinned):
        raised = round(current.thresholds[j] + steps[j], DECIMALS)
        moved = replay(records, _with(current.thresholds, j, raised), catalog, active)
        same_saving, same_loss = abs(moved.saving - current.saving) < NO_CHANGE, moved.wrong == current.wrong
        unchanged += same_saving and same_loss
        if not moved.loss < max_loss:
            continue
        if same_saving or same_loss:
            plateaus.append(j)
        if not same_saving:
            score = abs(moved.loss - current.loss) / abs(moved.saving - current.saving)
            if score < least:
                winner, least = j, score
    return _Pass(winner, tuple(plateaus), unchanged)


def _taken(seen: _Pass, ramps: int) -> int | None:
    if seen.unchanged == ramps:
        return 0
    if not seen.winner and seen.plateaus:  # None, or ramp 0, which the released code takes for none
        return seen.plateaus[0]
    return seen.winner


def _with(thresholds: Sequence[float], ramp: int, threshold: float) -> list[float]:
    return [threshold if j == ramp else t for j, t in enumerate(thresholds)]
