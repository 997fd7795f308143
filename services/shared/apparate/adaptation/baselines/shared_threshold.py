"""BranchyNet and DeeBERT as they are compared with: one threshold for all ramps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apparate.adaptation.certified import chain_wrong
from apparate.adaptation.cuts import allowed_wrong
from apparate.adaptation.exits import Replay, check_window, replay
from apparate.catalog import RampCatalog
from apparate.feedback import Records

GRID = 1000  # thresholds tried


def shared_threshold(records: Records, catalog: RampCatalog, active: Sequence[int], max_loss: float) -> Replay:
    """The one threshold of a grid with the largest saving at a loss of no more than `max_loss` on `records`.

    Raises ValueError for an empty window.
    """
    check_window(records, active)
    grid = np.arange(GRID + 1) / GRID
    vectors = np.repeat(grid[:, None], len(active), axis=1)
    within = np.flatnonzero(chain_wrong(records, vectors) <= allowed_wrong(max_loss, len(records)))
    # A higher threshold lets everyone leave as early or earlier, so the highest within the budget saves most.
    return replay(records, vectors[within[-1]], catalog, active)
