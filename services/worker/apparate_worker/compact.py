"""The mode compact: rows that have their answer are computed no further, but in batches that are drawn to be checked.

Which batches are checked is drawn before each of them, with a probability that the guard gives and by a generator that
knows nothing of the batch: so what the checked ones say holds for all. The others stop where their last answer leaves,
and shrink to those who still wait wherever the profile says that this pays for parting them (DREX's test of
profitability). Nobody is ever made to leave: a row that no ramp lets go runs to the end. It then has the model's own
answer, which is no feedback: among the rows of unchecked batches only the hard ones get one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import torch

from apparate.feedback import FINAL
from apparate_worker.engine import Array, Engine, Journey, Schedule
from apparate_worker.passes import Flight, Pass

Remaining = Callable[[int, int], float]
PARTING_MS = 0.15  # that it costs to part rows, and to join them with others later, where it has not been measured
PARTINGS = 5  # timed at each ramp, of which the middle one counts
HANDLING_MS = 0.03  # what parting rows costs beside the device's part


class Compact:
    """Draws, and drops what needs no more computing. Device thread only.

    remaining_ms(ramp, rows): time from a ramp's site to the end of the model, for so many rows.
    """

    def __init__(self, remaining_ms: Remaining, seed: int = 0) -> None:
        self._remaining_ms, self._random = remaining_ms, random.Random(seed)
        self.parting_ms: Mapping[int, float] = {}
        """By ramp, of parting rows there; see `partings`. Assigned before the first pass."""

    def draw(self, one: Pass, share: float) -> None:
        """Settle whether the pass is run to the end, before it starts."""
        one.share = share
        one.whole = share >= 1.0 or self._random.random() < share

    def go_on(self, engine: Engine, flight: Flight, ramp: int) -> Flight | None:
        """What is left to do of an unchecked pass after answers have left at `ramp`: the same flight when dropping
        those rows does not pay, a smaller one of all that wait, or None when nobody does."""
        one, rows, waiting = flight.parts[0][0], flight.rows, flight.waiting()
        left_ms = self._remaining_ms(ramp, rows)
        if not waiting:
            one.drop(rows, left_ms)
            return None
        saved_ms = left_ms - self._remaining_ms(ramp, len(waiting)) - self.parting_ms.get(ramp, PARTING_MS)
        if saved_ms <= 0.0:
            return flight
        one.drop(rows - len(waiting), saved_ms)
        return flight.keep(engine, waiting)


def partings(engine: Engine, inputs: Mapping[str, Array], schedule: Schedule) -> dict[int, float]:
    """Milliseconds that it takes to part a batch in two, as measured at each active ramp of the schedule."""
    found = {}
    rows = range((len(next(iter(inputs.values()))) + 1) // 2)
    with torch.inference_mode():
        journey = engine.start(inputs, schedule)
        for output in engine.run(journey, waits=True):
            if output is not None and output.step.ramp != FINAL:
                found[output.step.ramp] = median(_parting_s(engine, journey, rows) for _ in range(PARTINGS)) * 1e3
    return {ramp: ms + HANDLING_MS for ramp, ms in found.items()}


def _parting_s(engine: Engine, journey: Journey, rows: Sequence[int]) -> float:
    began = time.perf_counter()
    engine.part(journey, rows)
    return time.perf_counter() - began
