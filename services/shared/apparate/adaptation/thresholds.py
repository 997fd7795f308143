"""The tuners behind one door: a window of the active ramps in, thresholds and what they prove out."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from apparate.adaptation.certified import Split, Tuned, certified
from apparate.adaptation.hill_climb import hill_climb
from apparate.adaptation.sweep import sweep
from apparate.catalog import RampCatalog
from apparate.feedback import Records


class Method(StrEnum):
    """How thresholds are searched."""

    CERTIFIED = "certified"
    """Within the budget on future requests, at a stated confidence. The default."""
    SWEEP = "sweep"
    """Close to the most that can be saved on the window itself; its loss afterwards overshoots."""
    HILL_CLIMB = "hill_climb"
    """The paper's greedy search on the window itself."""


def tune(
    records: Records,
    catalog: RampCatalog,
    active: Sequence[int],
    *,
    max_loss: float,
    method: Method = Method.CERTIFIED,
    confidence: float = 0.95,
    split: Split = "interleaved",
) -> Tuned:
    """Thresholds for the active ramps by `method`, which lose no more than `max_loss` on `records`.

    The columns of `records` are the active ramps. Only the certified method has an upper bound of the loss. Raises
    ValueError for an empty window.
    """
    if method is Method.CERTIFIED:
        return certified(records, catalog, active, max_loss, confidence, split=split)
    if method is Method.SWEEP:
        return Tuned(sweep(records, catalog, active, max_loss))
    return Tuned(hill_climb(records, catalog, active, max_loss).tight)
