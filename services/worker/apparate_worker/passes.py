"""Requests on their way through the model: a pass as it is reported, and flights, the rows that travel together.

A pass starts as one flight. Answered rows may part from those that still wait for an answer: their answers have left,
so what is left of their way is only for feedback, and can wait for a moment when nobody else does. Rows of several
passes that stand at the same place then travel together, so that the device runs whole batches.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.feedback import FINAL
from apparate.plan import Plan
from apparate_worker.engine import Engine, Journey
from apparate_worker.pending import Item
from apparate_worker.release import Release

Array = npt.NDArray[Any]


class Pass:
    """What one batch did, for feedback and metrics. Arrays have one row for each request, in batch order."""

    __slots__ = (
        "broken",
        "dropped",
        "errors",
        "exits",
        "final_labels",
        "guarded",
        "input_s",
        "items",
        "labels",
        "left",
        "plan",
        "pooled",
        "queued_s",
        "release",
        "released_at",
        "released_s",
        "saved_ms",
        "service_s",
        "share",
        "started",
        "started_at",
        "timed",
        "whole",
    )

    def __init__(self, items: Sequence[Item], plan: Plan) -> None:
        self.items, self.plan = items, plan
        self.release = Release(len(items), {r: at for r, one in enumerate(items) if (at := one.request.limits)})
        self.left = len(items)
        """Rows that have not reached the end of the model."""
        self.share, self.whole = 1.0, True
        """Whether all rows run to the end, so that they are checked; and with which probability this was drawn."""
        self.dropped, self.saved_ms = 0, 0.0
        """Answered rows that are computed no further, and the device's time that saves by the profile."""
        self.broken = False
        """The model raised on some of its rows, so there is nothing whole to report."""
        self.started, self.started_at = time.monotonic(), time.time()
        self.queued_s = self.started - self._arrived()
        self.input_s = 0.0
        """From the start until the inputs stood together."""
        self.errors: dict[int, Array] = {}
        """[N] error score by active ramp, also past the exit."""
        self.labels: dict[int, Array] = {}
        self.pooled: dict[int, Array] = {}
        """[N, F] by ramp that is switched off; only in passes with shadows."""
        self.final_labels: npt.NDArray[np.int32] = np.zeros(len(items), np.int32)
        self.released_at = [0.0] * len(items)
        self.exits: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self.released_s: npt.NDArray[np.float64] = np.zeros(0)
        """Arrival to release."""
        self.service_s = 0.0
        """Start of the pass to the last answer that left."""
        self.guarded = False
        self.timed: list[tuple[int, float]] | None = None
        """(ramp or FINAL, seconds since the one before, or the input) of each step, in passes that are timed."""

    def _arrived(self) -> npt.NDArray[np.float64]:
        return np.array([item.request.arrived for item in self.items])

    def note(self, into: dict[int, Array], ramp: int, rows: Sequence[int], values: Array) -> None:
        """Keep what was said of some rows, or of all in order."""
        if len(rows) == len(self.items):
            into[ramp] = values
            return
        if ramp not in into:
            into[ramp] = np.zeros((len(self.items), *values.shape[1:]), values.dtype)
        into[ramp][list(rows)] = values

    def finish(self, rows: Sequence[int], labels: Array) -> None:
        """Take the model's own labels of rows that have reached its end."""
        self.final_labels[list(rows)] = labels
        self.left -= len(rows)

    def drop(self, rows: int, saved_ms: float) -> None:
        """Compute so many answered rows no further."""
        self.left -= rows
        self.dropped += rows
        self.saved_ms += saved_ms

    def close(self) -> list[bool]:
        """Sum up once no row is on its way; whether each answer that counts left early and wrong, in order of release.

        That is known only where all rows have reached the end of the model.
        """
        exits, said, final = self.release.exits, self.labels, self.final_labels
        self.exits = np.array(exits, np.int32)
        self.released_s = np.array(self.released_at) - self._arrived()
        self.service_s = max(self.released_at) - self.started
        if not self.whole:
            return []
        return [exits[row] != FINAL and bool(said[exits[row]][row] != final[row]) for row in self.release.counting]


@dataclass(slots=True)
class Flight:
    """Rows that travel together, part after part; within a part in the order of its pass."""

    journey: Journey
    parts: list[tuple[Pass, list[int]]]

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return sum(len(rows) for _, rows in self.parts)

    def waiting(self) -> list[int]:
        """Places in the flight of rows that still wait for their answer."""
        found, place = [], 0
        for one, rows in self.parts:
            found += [place + i for i, row in enumerate(rows) if one.release.waits(row)]
            place += len(rows)
        return found

    def divide(self, engine: Engine, go: Sequence[int]) -> tuple[Flight, Flight]:
        """(the rows at the places `go`, the others)."""
        going = set(go)
        others = [place for place in range(self.rows) if place not in going]
        return self.keep(engine, go), self.keep(engine, others)

    def keep(self, engine: Engine, places: Sequence[int]) -> Flight:
        """A flight of its own for the rows at some places."""
        wanted, parts, place = set(places), [], 0
        for one, rows in self.parts:
            kept = [row for i, row in enumerate(rows) if place + i in wanted]
            place += len(rows)
            if kept:
                parts.append((one, kept))
        return Flight(engine.part(self.journey, places), parts)

    @classmethod
    def together(cls, engine: Engine, flights: Sequence[Flight]) -> Flight:
        """One flight of several that stand at the same place."""
        if len(flights) == 1:
            return flights[0]
        parts = [part for flight in flights for part in flight.parts]
        return cls(engine.join([f.journey for f in flights]), parts)


@dataclass(slots=True)
class Parked:
    """Flights of answered rows, whose way to the end of the model waits for a quiet moment."""

    engine: Engine
    rows: int = 0
    _flights: deque[tuple[Hashable, Flight]] = field(default_factory=deque)

    def add(self, flight: Flight) -> None:
        """Park a flight where it stands."""
        self._flights.append((self.engine.place(flight.journey), flight))
        self.rows += flight.rows

    @property
    def oldest_s(self) -> float:
        """Time since the pass of the first parked row started. There must be one."""
        return time.monotonic() - self._flights[0][1].parts[0][0].started

    def take(self, most: int) -> list[Flight]:
        """The oldest flight, and others from the same place, up to `most` rows. There must be one."""
        place, first = self._flights.popleft()
        chosen, rows, kept = [first], first.rows, deque[tuple[Hashable, Flight]]()
        for at, flight in self._flights:
            if at == place and rows + flight.rows <= most:
                chosen.append(flight)
                rows += flight.rows
            else:
                kept.append((at, flight))
        self._flights = kept
        self.rows -= rows
        return chosen

    def joining(self, flight: Flight, most: int) -> list[Flight]:
        """The flight, and the parked ones that stand where it has come, up to `most` rows."""
        if not self._flights or flight.rows >= most:
            return [flight]
        self._flights.appendleft((self.engine.place(flight.journey), flight))
        self.rows += flight.rows
        return self.take(most)

    def forget_broken(self) -> None:
        """Drop flights of passes that will not be reported."""
        self._flights = deque(one for one in self._flights if not any(p.broken for p, _ in one[1].parts))
        self.rows = sum(flight.rows for _, flight in self._flights)
