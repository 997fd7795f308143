"""Every metric of every service, as data. Names: apparate_<noun>_<unit>, base units, no label from a client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LATENCY_S = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096)
BATCH = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Metric:
    """One metric. A counter's name here is without `_total`, which exposition adds."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


WORKER: tuple[Metric, ...] = ()
CONTROLLER: tuple[Metric, ...] = ()

METRICS: tuple[Metric, ...] = WORKER + CONTROLLER
