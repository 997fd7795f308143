"""From a window of feedback to the next plan: what is checked, in which order, and the reason that is given."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from apparate.plan import Plan


@dataclass(frozen=True)
class Budget:
    """What early exits may cost, all as shares 0..1."""

    accuracy_loss: float = 0.01
    ramp_overhead: float = 0.02
    confidence: float = 0.95


class Reason(StrEnum):
    """Why a decision was taken; the same word in status, metric label, log field and event."""

    STARTED = "Started"
    NOT_ENOUGH_FEEDBACK = "NotEnoughFeedback"
    LOSS_ABOVE_BUDGET = "LossAboveBudget"
    GUARD_CLOSED = "GuardClosed"
    THRESHOLDS_TUNED = "ThresholdsTuned"
    RAMPS_ADJUSTED = "RampsAdjusted"
    ROLLED_BACK = "RolledBack"
    UNCHANGED = "Unchanged"
    PAUSED = "Paused"


@dataclass(frozen=True)
class Observed:
    """What the window says of the plan in force."""

    samples: int = 0
    loss: float = 0.0
    loss_upper: float = 1.0
    """Upper confidence bound of the loss."""
    saving: float = 0.0
    """Share of the plain pass's time that answers left earlier, on average."""
    exit_rate: float = 0.0


@dataclass(frozen=True)
class Decision:
    """A decision and its reason; `plan` is None when the plan in force stays."""

    reason: Reason
    message: str
    plan: Plan | None = None
    observed: Observed = Observed()
