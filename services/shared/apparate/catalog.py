"""Every ramp a prepared model has, and what it costs to reach and to run each, by batch size."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.plan import Plan

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]

BUDGET_SLACK = 1e-9  # a set whose overhead equals the budget to the last printed digit fits it


class InvalidCatalog(ValueError):
    """A catalog that cannot be true; the message names the field, the value and the limit."""


@dataclass(frozen=True, eq=False)
class RampCatalog:
    """All ramps of one prepared model, shallow to deep, with their latency profile in milliseconds.

    batch_sizes  [B]     profiled batch sizes, rising
    reach_ms     [B, R]  T: backbone time from the start of the pass up to each ramp's site, rising along R
    overhead_ms  [B, R]  o: time of the ramp itself
    full_ms      [B]     F: backbone time of the whole pass without ramps

    Raises InvalidCatalog for shapes that do not agree, values that are not finite and positive, and a T that does
    not rise from site to site or ends above F.
    """

    batch_sizes: tuple[int, ...]
    reach_ms: Floats
    overhead_ms: Floats
    full_ms: Floats
    layers: tuple[str, ...] = ()
    digest: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("reach_ms", "overhead_ms", "full_ms"):
            try:
                values = np.array(getattr(self, name), np.float64)
            except (TypeError, ValueError, OverflowError) as error:
                raise InvalidCatalog(f"{name} is not a table of numbers: {error}") from None
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        object.__setattr__(self, "batch_sizes", tuple(int(b) for b in self.batch_sizes))
        self._check()
        if not self.layers:
            object.__setattr__(self, "layers", tuple(f"ramp{r}" for r in range(self.ramps)))
        if len(self.layers) != self.ramps:
            raise InvalidCatalog(f"layers has {len(self.layers)} names, T has {self.ramps} ramps")
        if not self.digest:
            object.__setattr__(self, "digest", self._own_digest())

    def _check(self) -> None:
        sizes = self.batch_sizes
        if not sizes or sizes[0] < 1 or any(a >= b for a, b in pairwise(sizes)):
            raise InvalidCatalog(f"batch sizes are {list(sizes)}, must be positive and rising")
        if self.reach_ms.ndim != 2 or self.reach_ms.shape[0] != len(sizes):
            raise InvalidCatalog(f"T has shape {list(self.reach_ms.shape)}, expected [{len(sizes)}, R]")
        if self.overhead_ms.shape != self.reach_ms.shape:
            raise InvalidCatalog(f"o has shape {list(self.overhead_ms.shape)}, T has {list(self.reach_ms.shape)}")
        if self.full_ms.shape != (len(sizes),):
            raise InvalidCatalog(f"full has shape {list(self.full_ms.shape)}, expected [{len(sizes)}]")
        for name, values in (("T", self.reach_ms), ("o", self.overhead_ms), ("full", self.full_ms)):
            if not np.isfinite(values).all() or (values < 0).any():
                raise InvalidCatalog(f"{name} has a value that is negative or not finite")
        if (self.full_ms <= 0).any():
            raise InvalidCatalog(f"full is {self.full_ms.min()} ms, must be positive")
        if self.reach_ms.shape[1] > 1 and (np.diff(self.reach_ms, axis=1) <= 0).any():
            b, r = np.argwhere(np.diff(self.reach_ms, axis=1) <= 0)[0]
            raise InvalidCatalog(
                f"T does not rise at batch size {sizes[b]}: ramp {r} is reached after {self.reach_ms[b, r]:.4f} ms, "
                f"ramp {r + 1} after {self.reach_ms[b, r + 1]:.4f} ms"
            )
        if self.reach_ms.shape[1] and (self.reach_ms[:, -1] > self.full_ms).any():
            raise InvalidCatalog("T of the last ramp is above the time of the whole pass")

    @property
    def ramps(self) -> int:
        """How many ramps there are."""
        return int(self.reach_ms.shape[1])

    def rows(self, batch: Ints) -> Ints:
        """Row of the profile each served batch size belongs to: the next profiled size up, or the largest."""
        sizes = np.array(self.batch_sizes)
        found: Ints = np.minimum(np.searchsorted(sizes, batch), len(sizes) - 1)
        return found

    def exit_ms(self, active: Sequence[int]) -> Floats:
        """[B, k+1] latency of leaving at each active ramp, and last of leaving nowhere.

        L_j = T[a_j] + the overheads of the ramps up to and including j; no exit pays the whole pass and every ramp.
        """
        chosen = list(active)
        paid = np.cumsum(self.overhead_ms[:, chosen], axis=1)
        whole = self.full_ms[:, None] + (paid[:, -1:] if chosen else 0.0)
        found: Floats = np.concatenate([self.reach_ms[:, chosen] + paid, whole], axis=1)
        return found

    def overhead_share(self, active: Sequence[int]) -> float:
        """Largest slowdown, over the profiled batch sizes, of a request that exits nowhere: share of the plain pass."""
        return float((self.overhead_ms[:, list(active)].sum(axis=1) / self.full_ms).max())

    def has(self, plan: Plan) -> bool:
        """Whether it is a plan of this catalog, with no ramp that there is not."""
        return plan.catalog == self.digest and (not plan.active or plan.active[-1] < self.ramps)

    def fits(self, active: Sequence[int], budget: float) -> bool:
        """Whether the ramp overhead stays within `budget` at every profiled batch size."""
        return self.overhead_share(active) <= budget + BUDGET_SLACK

    def feasible(self) -> tuple[int, ...]:
        """Ramps that answer no later than the plain model at every profiled batch size."""
        answers = self.reach_ms + self.overhead_ms
        return tuple(int(r) for r in np.flatnonzero((answers <= self.full_ms[:, None]).all(axis=0)))

    def latest_useful(self) -> int:
        """End of the leading run of feasible ramps; -1 when the first is not feasible."""
        feasible, latest = set(self.feasible()), -1
        while latest + 1 in feasible:
            latest += 1
        return latest

    def max_active_ramps(self, budget: float) -> int:
        """Most ramps that can be active within the overhead budget, taking the cheapest feasible ones."""
        costs = (self.overhead_ms / self.full_ms[:, None]).max(axis=0)
        order = sorted(self.feasible(), key=lambda r: (costs[r], r))
        count = 0
        while count < len(order) and self.fits(order[: count + 1], budget):
            count += 1
        return count

    def to_json(self) -> dict[str, Any]:
        """The catalog as plain data, in the documented file format."""
        return {
            **self.extra,
            "format": 1,
            "digest": self.digest,
            "layers": list(self.layers),
            "batch_sizes": list(self.batch_sizes),
            "T": self.reach_ms.tolist(),
            "o": self.overhead_ms.tolist(),
            "full": self.full_ms.tolist(),
        }

    @classmethod
    def from_json(cls, data: Any) -> RampCatalog:
        """The catalog from plain data. Raises InvalidCatalog that names what is missing or wrong."""
        if not isinstance(data, Mapping):
            raise InvalidCatalog(f"a catalog is a JSON object, this is a {type(data).__name__}")
        missing = [k for k in ("batch_sizes", "T", "o", "full") if k not in data]
        if missing:
            raise InvalidCatalog(f"catalog has no {', '.join(missing)}")
        known = {"format", "digest", "layers", "batch_sizes", "T", "o", "full"}
        try:
            sizes = tuple(int(b) for b in data["batch_sizes"])
        except (TypeError, ValueError, OverflowError):
            raise InvalidCatalog(f"batch_sizes is {data['batch_sizes']!r}, must be a list of whole numbers") from None
        layers, digest = data.get("layers", ()), data.get("digest", "")
        if not isinstance(layers, list | tuple):
            raise InvalidCatalog(f"layers is {layers!r}, must be a list of names")
        if not isinstance(digest, str):
            raise InvalidCatalog(f"digest is {digest!r}, must be text")
        return cls(
            batch_sizes=sizes,
            reach_ms=data["T"],
            overhead_ms=data["o"],
            full_ms=data["full"],
            layers=tuple(str(name) for name in layers),
            digest=digest,
            extra={k: v for k, v in data.items() if k not in known},
        )

    def _own_digest(self) -> str:
        content = [
            self.batch_sizes,
            self.reach_ms.tolist(),
            self.overhead_ms.tolist(),
            self.full_ms.tolist(),
            self.layers,
        ]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
