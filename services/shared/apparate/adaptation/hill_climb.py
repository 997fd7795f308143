"""The paper's search for thresholds: a greedy climb from all ramps closed, with a step of its own for each ramp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apparate.adaptation.cuts import GRID, allowed_wrong
from apparate.adaptation.exits import Ints, Replay, check_window, exit_ramps, profile_rows, replay
from apparate.catalog import RampCatalog
from apparate.feedback import Records

GAIN_DECIMALS = 9  # of a saving in per cent; smaller differences are rounding, not gain


@dataclass(frozen=True)
class Climbed:
    """Where the climb ended. `tight` lets go the same records of the window at the lowest thresholds that do."""

    replay: Replay
    tight: Replay
    evals: int
    """Replays that were looked at."""
    rounds: int

    @property
    def thresholds(self) -> tuple[float, ...]:
        """[k] thresholds as the climb left them."""
        return self.replay.thresholds


@dataclass(frozen=True)
class _Move:
    ramp: int
    gain: float
    cost: int
    moved: Ints

    @property
    def preference(self) -> tuple[bool, float, float, int]:
        """Sorts best first: free before costly; of the free the largest gain, else the largest gain for its cost."""
        return (self.cost > 0, -self.gain / max(self.cost, 1), -self.gain, self.ramp)


def hill_climb(
    records: Records,
    catalog: RampCatalog,
    active: Sequence[int],
    max_loss: float,
    *,
    first_step: float = 0.01,
    least_step: float = 0.001,
) -> Climbed:
    """The thresholds a greedy climb finds for `records` at a loss of no more than `max_loss` on them.

    Each round tries to raise each ramp's threshold by its step. The raise that saves most per disagreement is made
    and its step doubled; a raise that changes nothing is made too; the step of a ramp whose raise loses too much or
    saves nothing is halved. Ends when a round changes nothing. Deterministic, independent of the order of records.
    Raises ValueError for an empty window, and for steps that are not 0.0001 <= least_step <= first_step <= 1.
    """
    check_window(records, active)
    if not 1 <= round(least_step * GRID) <= round(first_step * GRID) <= GRID:
        raise ValueError(f"steps are {first_step} and {least_step}, must fall and be within {1 / GRID}..1")
    climb = _Climb(records, catalog, active, allowed_wrong(max_loss, len(records)))
    evals, rounds = climb.run(round(first_step * GRID), round(least_step * GRID))
    return Climbed(
        replay=replay(records, climb.height / GRID, catalog, active),
        tight=replay(records, climb.tightened() / GRID, catalog, active),
        evals=evals,
        rounds=rounds,
    )


class _Climb:
    """Heights are thresholds in whole ten-thousandths; a move touches only the records that it lets go."""

    def __init__(self, records: Records, catalog: RampCatalog, active: Sequence[int], allowed: int) -> None:
        self.allowed = allowed
        self.opens = _heights_that_open(records.errors.T)
        self.wrong = np.vstack([~records.agree.T, np.zeros((1, len(records)), bool)])
        self.height = np.zeros(len(active), np.int64)
        self.exit_ms = catalog.exit_ms(active)
        self.rows = profile_rows(records, catalog)
        self.plain_ms = float(np.bincount(self.rows, minlength=len(catalog.full_ms)) @ catalog.full_ms)
        self.left_at = exit_ramps(records.errors, np.zeros(len(active)))
        self.bad = 0

    def run(self, first_step: int, least_step: int) -> tuple[int, int]:
        steps, evals, rounds, changed = np.full(len(self.height), first_step), 1, 0, True
        while changed:
            rounds += 1
            before = (self.height.copy(), steps.copy())
            climbing = np.flatnonzero(self.height < GRID)
            moves = {int(j): self.move(int(j), min(GRID, int(self.height[j] + steps[j]))) for j in climbing}
            evals += len(moves)
            flat = {j for j, move in moves.items() if not len(move.moved)}
            movers = [
                move
                for j, move in moves.items()
                if j not in flat and move.gain > 0 and self.bad + move.cost <= self.allowed
            ]
            best = min(movers, key=lambda move: move.preference, default=None)
            raised = flat | ({best.ramp} if best else set())
            stuck = set(moves) - flat - {move.ramp for move in movers}
            if best:
                self.left_at[best.moved] = best.ramp
                self.bad += best.cost
            for j in raised:
                self.height[j] = min(GRID, self.height[j] + steps[j])
                steps[j] *= 2
            for j in stuck:
                if steps[j] > least_step:
                    steps[j] = max(least_step, steps[j] // 2)
            changed = not (np.array_equal(before[0], self.height) and np.array_equal(before[1], steps))
        return evals, rounds

    def move(self, ramp: int, height: int) -> _Move:
        """What raising one ramp to `height` would do: the records it takes from deeper exits, gain in per cent."""
        opens = self.opens[ramp]
        moved = np.flatnonzero((opens > self.height[ramp]) & (opens <= height) & (self.left_at > ramp))
        exits = self.exit_ms.shape[1]
        left_at = self.left_at[moved]
        # Counted by batch size and exit, so that the sum is the same in any order of records.
        counts = np.bincount(self.rows[moved] * exits + left_at, minlength=self.exit_ms.size).reshape(-1, exits)
        gained_ms = float((counts * (self.exit_ms - self.exit_ms[:, ramp : ramp + 1])).sum())
        cost = int(self.wrong[ramp, moved].sum()) - int(self.wrong[left_at, moved].sum())
        return _Move(ramp, round(100 * gained_ms / self.plain_ms, GAIN_DECIMALS), cost, moved)

    def tightened(self) -> Ints:
        """[k] the smallest heights that let go the same records of the window; 0 where none leave."""
        tight = np.zeros_like(self.height)
        for j, opens in enumerate(self.opens):
            leaving = opens[self.left_at == j]
            tight[j] = leaving.max() if len(leaving) else 0
        return tight


def _heights_that_open(errors: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """The smallest height, in float32 as the exit rule compares, above each error; GRID + 1 where there is none."""
    heights = (np.arange(GRID + 1) / GRID).astype(np.float32)
    return np.searchsorted(heights, np.nan_to_num(errors, nan=1.0), side="right").astype(np.int16)
