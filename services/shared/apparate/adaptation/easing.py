"""How far to go on a certified chain, told by the newest records.

A certificate trusts the whole window, and holds for every configuration of the chain up to where its walk stopped, all
of them at once: fixed-sequence testing accepts one whose loss exceeds the budget with probability 1 - confidence at
most, whichever of the accepted ones is then deployed, and however that is chosen. So going back and forth between them
on what the newest records say costs no certainty, and it needs neither a search nor a fresh window: a step back is the
first answer to an alarm or to a bad stretch, and a step forward follows as soon as the stretch is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from apparate.adaptation.binomial import tail
from apparate.adaptation.certified import Tuned, chain_wrong
from apparate.adaptation.exits import Floats, Replay, replay
from apparate.adaptation.thresholds import Method, tune
from apparate.catalog import RampCatalog
from apparate.feedback import Records

RECENT = (64, 256, 1024)  # newest records that must not contradict the certificate, which trusts the whole window
RECENT_LEVEL = 0.9  # a configuration is contradicted when so many disagreements had at most a tenth of probability


@dataclass(frozen=True, eq=False)
class Eased:
    """What a tuning accepted for a set of ramps, and how much of it the newest records leave: a step of its chain."""

    active: tuple[int, ...]
    tuned: Tuned
    step: int
    replay: Replay
    """What is to be deployed, on the window."""

    @property
    def held_back(self) -> bool:
        """Whether bolder thresholds were accepted than are to be deployed."""
        return self.step < self.tuned.step

    @property
    def next_thresholds(self) -> Floats:
        """[k] one step bolder. There must be one."""
        found: Floats = self.tuned.chain.thresholds[self.step + 1]
        return found

    @property
    def has_steps(self) -> bool:
        """Whether there is anything to step to: tuners without a certificate have no chain."""
        return len(self.tuned.chain.thresholds) > 1


def tune_eased(
    records: Records,
    catalog: RampCatalog,
    active: tuple[int, ...],
    *,
    max_loss: float,
    method: Method,
    confidence: float,
) -> Eased:
    """Thresholds from the whole window, eased until the newest records do not contradict them."""
    tuned = tune(records, catalog, active, max_loss=max_loss, method=method, confidence=confidence)
    found = Eased(active, tuned, tuned.step, tuned.replay)
    return step(records, catalog, found, max_loss) if found.has_steps else found


def step(records: Records, catalog: RampCatalog, known: Eased, max_loss: float, *, back: bool = False) -> Eased:
    """The boldest thresholds that were accepted and that the newest records do not contradict; at worst all closed.

    back: none that are bolder than those deployed.
    """
    accepted = known.tuned.chain.thresholds[: (known.step if back else known.tuned.step) + 1]
    possible = np.flatnonzero(uncontradicted(records, accepted, max_loss))
    at = int(possible[-1]) if len(possible) else 0
    return replace(known, step=at, replay=replay(records, accepted[at], catalog, known.active))


def uncontradicted(records: Records, thresholds: Floats, loss: float) -> npt.NDArray[np.bool_]:
    """[S] whether the newest records leave a loss of `loss` likely under each of S configurations [S, k]."""
    fine = np.ones(len(thresholds), bool)
    for count in RECENT:
        if len(records) >= count:
            fine &= chain_wrong(records.take(slice(-count, None)), thresholds) <= likely_most(count, loss)
    return fine


@lru_cache(maxsize=256)
def likely_most(count: int, loss: float, level: float = RECENT_LEVEL) -> int:
    """Smallest k with P[Bin(count, loss) <= k] >= level: more disagreements than this contradict that loss."""
    k = 0
    while k < count and tail(k, count, loss) < level:
        k += 1
    return k
