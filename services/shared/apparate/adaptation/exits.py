"""The exit rule, and what it would have done to a window: loss, saving and exit rates of any thresholds.

Replaying needs no inference: every active ramp reports on every request, also past the point where its answer left,
so a window answers any "what if" about its ramps exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.catalog import RampCatalog
from apparate.feedback import Records

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]


def exit_ramps(errors: Floats, thresholds: Floats) -> Ints:
    """Position of the ramp each request exits at; R means it ran to the final layer.

    errors      [N, R]  error score of every active ramp, 0 sure .. 1 unsure, shallow to deep
    thresholds  [R]     a ramp lets go a request whose error is below its threshold, so 0 is a closed ramp
    returns     [N]     0..R

    Compared strictly and in float32, here and in the worker, so that both always agree. A NaN error never exits.
    """
    limits = np.asarray(thresholds, np.float32)
    lets_go = np.ones((len(errors), len(limits) + 1), bool)  # the final layer, in the last column, takes the rest
    np.less(np.asarray(errors, np.float32), limits, out=lets_go[:, :-1])
    first: Ints = lets_go.argmax(axis=1)
    return first


@dataclass(frozen=True)
class Replay:
    """What `thresholds` would have done to a window of n requests; all shares are 0..1.

    Times are means over what the records stand for; counts are of the records themselves.
    """

    thresholds: tuple[float, ...]
    """[k] one for each active ramp."""
    n: int
    exits: tuple[int, ...]
    """[k+1] requests that leave at each active ramp, and last those that leave nowhere."""
    wrong: int
    """Answers that leave early and disagree with the model's own."""
    mean_ms: float
    """Mean time from the start of the pass to the answer, queueing excluded."""
    saving: float
    """Share of the plain pass's time that answers come sooner on average; negative when the ramps cost more."""

    @property
    def loss(self) -> float:
        """Share of all answers that disagree with the model's own."""
        return self.wrong / self.n

    @property
    def exit_rates(self) -> tuple[float, ...]:
        """[k+1] share of requests that leave at each active ramp, and last of those that leave nowhere."""
        return tuple(count / self.n for count in self.exits)

    @property
    def exit_rate(self) -> float:
        """Share of requests that leave early."""
        return 1.0 - self.exits[-1] / self.n


def profile_rows(records: Records, catalog: RampCatalog) -> Ints:
    """[N] row of the catalog's profile for the batch size that each record was served in."""
    largest = catalog.batch_sizes[-1]
    row_of_size = catalog.rows(np.arange(largest + 1))
    rows: Ints = row_of_size[np.minimum(records.batch, largest)]
    return rows


def replay(
    records: Records, thresholds: Sequence[float] | Floats, catalog: RampCatalog, active: Sequence[int]
) -> Replay:
    """What `thresholds` would have done to `records`, each at the latency of its own batch size.

    The columns of `records` are the active ramps, in order; `active` are their indices in the catalog. Everyone pays
    the ramps they pass, the one they leave at included. Raises ValueError for an empty window, or for records,
    thresholds and active ramps that differ in number.
    """
    check_window(records, active)
    if len(thresholds) != len(active):
        raise ValueError(f"{len(thresholds)} thresholds for {len(active)} active ramps")
    left_at = exit_ramps(records.errors, np.asarray(thresholds))
    return replay_exits(records, left_at, catalog.exit_ms(active), catalog, tuple(float(t) for t in thresholds))


def replay_exits(
    records: Records, left_at: Ints, exit_ms: Floats, catalog: RampCatalog, thresholds: tuple[float, ...] = ()
) -> Replay:
    """The same for exits given outright: left_at [N] is 0..k as from `exit_ramps`, exit_ms [B, k+1] what each takes."""
    # Counted by batch size and exit first, so that the sums are the same in any order of records.
    cells = profile_rows(records, catalog) * exit_ms.shape[1] + left_at
    counts = np.bincount(cells, minlength=exit_ms.size).reshape(exit_ms.shape)
    stand_for = counts
    if records.weight is not None:
        stand_for = np.bincount(cells, records.weight, minlength=exit_ms.size).reshape(exit_ms.shape)
    plain_ms = float(stand_for.sum(axis=1) @ catalog.full_ms)
    taken_ms = float((stand_for * exit_ms).sum())
    return Replay(
        thresholds=thresholds,
        n=len(records),
        exits=tuple(int(c) for c in counts.sum(axis=0)),
        wrong=count_wrong(records, left_at),
        mean_ms=taken_ms / float(stand_for.sum()),
        saving=(plain_ms - taken_ms) / plain_ms,
    )


def count_wrong(records: Records, left_at: Ints) -> int:
    """How many requests leave at a ramp whose answer is not the model's; `left_at` as from `exit_ramps`."""
    early = np.flatnonzero(left_at < records.ramps)
    return len(early) - int(np.count_nonzero(records.agree[early, left_at[early]]))


def check_window(records: Records, active: Sequence[int]) -> None:
    """Raise ValueError for an empty window, or one whose columns are not the active ramps."""
    if not len(records):
        raise ValueError("cannot replay an empty window")
    if records.ramps != len(active):
        raise ValueError(f"records have {records.ramps} ramps, there are {len(active)} active ramps")
