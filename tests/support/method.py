"""Catalogs and windows for tests of the method; say only what matters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from apparate.catalog import RampCatalog
from apparate.feedback import Records


def even_catalog(ramps: int, *, overhead: float = 0.004, batch_sizes: Sequence[int] = (1,)) -> RampCatalog:
    """Evenly spaced ramps on a pass of 10 ms for each request; overhead as a share of the pass."""
    sizes = np.array(batch_sizes, float)[:, None]
    reach = 10.0 * sizes * (np.arange(ramps) + 1) / (ramps + 1)
    return RampCatalog(tuple(batch_sizes), reach, 10.0 * overhead * sizes * np.ones((1, ramps)), 10.0 * sizes[:, 0])


def noisy_records(seed: int, n: int, ramps: int, *, batch_sizes: Sequence[int] = (1,), decimals: int = 9) -> Records:
    """Requests of different difficulty; deeper ramps are surer and more often right. Few decimals make ties."""
    rng = np.random.default_rng(seed)
    logit = np.linspace(0.3, 2.5, ramps) + rng.normal(0, 1.3, (n, 1)) + rng.normal(0, 0.7, (n, ramps))
    share = np.array([math.erf(x / 1.6) for x in logit.ravel()]).reshape(logit.shape)
    sureness = np.clip(0.75 + 0.25 * share, 0.5, 1.0)
    agree = rng.random((n, ramps)) < sureness
    errors = np.round(1.0 - sureness, decimals).astype(np.float32)
    return Records(errors, agree, rng.choice(list(batch_sizes), n))
