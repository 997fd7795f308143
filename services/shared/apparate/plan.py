"""Which ramps are active and what each lets go: the one thing the controller sends to workers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

MAX_REVISION = 10**12
"""After it comes 1 again: a decision a second gets there in 30,000 years, a person who edits a status at once."""


def newer(revision: int, than: int) -> bool:
    """Whether a plan of `revision` takes the place of one of `than`; 0 is no plan.

    Higher is newer, by up to half of MAX_REVISION. What is further away is on the other side of the place where numbers
    start again (the serial numbers of RFC 1982), so whatever is in force, there are revisions that replace it. Of two
    that are just half of it apart the higher one is newer: never are both newer than the other.
    """
    if revision <= 0 or than == 0:
        return revision > 0
    above, half = (revision - than) % MAX_REVISION, MAX_REVISION // 2
    return 0 < above < half or (above == half and revision > than)


def newest(*revisions: int) -> int:
    """Of revisions, one that no other is newer than; 0 when there is none."""
    found = 0
    for one in revisions:
        found = one if newer(one, found) else found
    return found


def revision_after(*seen: int) -> int:
    """A revision for the next plan, of which the newest of `seen` was the last."""
    return newest(*seen) % MAX_REVISION + 1


class InvalidPlan(ValueError):
    """A plan that no worker may run; the message names the ramp, the value and the limit."""


@dataclass(frozen=True, order=True)
class RampSetting:
    """One active ramp. A request whose error score is strictly below `threshold` exits here; 0 is a closed ramp."""

    ramp: int
    """Index of the ramp in its catalog, shallow to deep."""
    threshold: float
    """0..1, compared in float32."""


@dataclass(frozen=True)
class Plan:
    """The active ramps with their thresholds. No ramps at all is the plain model.

    Ramps are kept in execution order. Raises InvalidPlan for a revision that is not within 0..MAX_REVISION, a negative
    or repeated ramp, and a threshold that is not within 0..1.
    """

    revision: int
    ramps: tuple[RampSetting, ...] = ()
    catalog: str = ""
    """Digest of the catalog that the ramp indices refer to; empty only for the plain model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ramps", tuple(sorted(self.ramps)))
        if not 0 <= self.revision <= MAX_REVISION:
            raise InvalidPlan(f"plan revision is {self.revision}, allowed 0..{MAX_REVISION}")
        previous = -1
        for setting in self.ramps:
            if setting.ramp < 0:
                raise InvalidPlan(f"ramp is {setting.ramp}, must not be negative")
            if setting.ramp == previous:
                raise InvalidPlan(f"ramp {setting.ramp} is listed twice in plan revision {self.revision}")
            if not 0.0 <= setting.threshold <= 1.0:  # also refuses NaN
                raise InvalidPlan(f"threshold of ramp {setting.ramp} is {setting.threshold}, allowed 0..1")
            previous = setting.ramp

    @classmethod
    def of(cls, revision: int, ramps: Iterable[int], thresholds: Iterable[float], catalog: str = "") -> Plan:
        """A plan from two parallel sequences."""
        settings = tuple(RampSetting(int(r), float(t)) for r, t in zip(ramps, thresholds, strict=True))
        return cls(revision, settings, catalog)

    @property
    def active(self) -> tuple[int, ...]:
        """Indices of the active ramps, shallow to deep."""
        return tuple(s.ramp for s in self.ramps)

    @property
    def thresholds(self) -> npt.NDArray[np.float32]:
        """[R] thresholds of the active ramps, in the same order."""
        return np.array([s.threshold for s in self.ramps], np.float32)

    @property
    def exits_open(self) -> bool:
        """Whether any request can exit early under this plan."""
        return any(s.threshold > 0 for s in self.ramps)

    def closed(self) -> Plan:
        """The same ramps with every threshold 0: they report, nobody exits."""
        return replace(self, ramps=tuple(RampSetting(s.ramp, 0.0) for s in self.ramps))

    def with_threshold(self, ramp: int, threshold: float) -> Plan:
        """The same plan with one threshold changed. Raises InvalidPlan when `ramp` is not active."""
        if ramp not in self.active:
            raise InvalidPlan(f"ramp {ramp} is not active in plan revision {self.revision}")
        return replace(
            self, ramps=tuple(RampSetting(s.ramp, threshold if s.ramp == ramp else s.threshold) for s in self.ramps)
        )

    def activate(self, ramp: int, threshold: float = 0.0) -> Plan:
        """The plan with `ramp` added; closed unless told otherwise, so that it only reports at first."""
        return replace(self, ramps=(*self.ramps, RampSetting(ramp, threshold)))

    def deactivate(self, ramp: int) -> Plan:
        """The plan without `ramp`. Raises InvalidPlan when it is not active."""
        if ramp not in self.active:
            raise InvalidPlan(f"ramp {ramp} is not active in plan revision {self.revision}")
        return replace(self, ramps=tuple(s for s in self.ramps if s.ramp != ramp))

    def same_settings(self, other: Plan) -> bool:
        """Whether both plans release the same requests at the same ramps, whatever their revisions."""
        return (
            self.active == other.active
            and bool(np.array_equal(self.thresholds, other.thresholds))
            and self.catalog == other.catalog
        )
