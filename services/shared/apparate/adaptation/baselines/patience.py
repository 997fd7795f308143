"""Patience-based early exit (PABEE): leave when so many ramps in a row give the same answer."""

from __future__ import annotations

import numpy as np

from apparate.adaptation.exits import Ints


def patience_exits(labels: Ints, patience: int) -> Ints:
    """[N] position of the first ramp that ends a run of `patience` equal answers, k where there is none.

    labels [N, k], the answers of the active ramps. Feed the result to `exits.replay_exits`. Raises ValueError for a
    patience below 1.
    """
    if patience < 1:
        raise ValueError(f"patience is {patience}, must be at least 1")
    n, ramps = labels.shape
    left_at = np.full(n, ramps)
    run = np.zeros(n, np.int64)
    for j in range(ramps):
        run = np.where(labels[:, j] == labels[:, j - 1], run + 1, 1) if j else np.ones(n, np.int64)
        left_at[(run >= patience) & (left_at == ramps)] = j
    return left_at
