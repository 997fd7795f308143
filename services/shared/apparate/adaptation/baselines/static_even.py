"""Static early exits: ramps and thresholds chosen once, on the first traffic, and kept."""

from __future__ import annotations

from collections.abc import Sequence

from apparate.adaptation.exits import Replay, replay
from apparate.adaptation.sweep import sweep
from apparate.catalog import RampCatalog
from apparate.feedback import Records


def static_even(first: Records, later: Records, catalog: RampCatalog, active: Sequence[int], max_loss: float) -> Replay:
    """What thresholds tuned on `first` do to `later`; the loss there may be anything.

    `active` is typically `ramps.even_spacing`. Raises ValueError when either window is empty.
    """
    return replay(later, sweep(first, catalog, active, max_loss).thresholds, catalog, active)
