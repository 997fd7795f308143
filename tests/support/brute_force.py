"""Exhaustive search for thresholds, to hold the tuners against: slow and plain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np

from apparate.adaptation.cuts import allowed_wrong, thresholds_between
from apparate.adaptation.exits import Replay, replay
from apparate.catalog import RampCatalog
from apparate.feedback import Records


def best_on_grid(
    records: Records, catalog: RampCatalog, active: Sequence[int], max_loss: float, grid: Sequence[float]
) -> Replay:
    """The best vector of grid values: most saving, then fewest disagreements, then the smallest thresholds."""
    return best_of(records, catalog, active, max_loss, product(grid, repeat=len(active)))


def exact_optimum(records: Records, catalog: RampCatalog, active: Sequence[int], max_loss: float) -> Replay:
    """The best of every distinguishable vector: cuts just above each distinct error."""
    choices = []
    for column in records.errors.T:
        distinct = np.append(np.unique(column[column < 1.0]), np.float32(1.0))
        choices.append([0.0, *thresholds_between(distinct[:-1], distinct[1:]).tolist()])
    return best_of(records, catalog, active, max_loss, product(*choices))


def best_of(
    records: Records,
    catalog: RampCatalog,
    active: Sequence[int],
    max_loss: float,
    vectors: Iterable[tuple[float, ...]],
) -> Replay:
    """The best of the given vectors within the budget."""
    allowed, best, rank = allowed_wrong(max_loss, len(records)), None, None
    for vector in vectors:
        one = replay(records, vector, catalog, active)
        key = (-round(one.saving, 11), one.wrong, vector)
        if one.wrong <= allowed and (rank is None or key < rank):
            best, rank = one, key
    assert best is not None
    return best
