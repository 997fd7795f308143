"""Optimal exiting: every request leaves at the first ramp that gives the model's own answer. Not attainable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apparate.adaptation.exits import Replay, check_window, replay_exits
from apparate.catalog import RampCatalog
from apparate.feedback import Records


def oracle(records: Records, catalog: RampCatalog, active: Sequence[int]) -> Replay:
    """What leaving at the first right ramp would save, never wrong; no answer takes longer than the plain model.

    Ramps passed on the way are paid for, as in the paper's code, up to the time of the plain pass. Raises ValueError
    for an empty window.
    """
    check_window(records, active)
    right = np.column_stack([records.agree, np.ones(len(records), bool)])
    capped = np.minimum(catalog.exit_ms(active), catalog.full_ms[:, None])
    return replay_exits(records, right.argmax(axis=1), capped, catalog)
