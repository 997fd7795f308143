"""One model's adaptation: feedback in, decisions out. Synchronous, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from apparate.adaptation.policy import Budget, Decision, Reason
from apparate.catalog import RampCatalog
from apparate.contract.resource import Spec
from apparate.feedback import FeedbackBatch, FeedbackWindow
from apparate.plan import Plan


@dataclass
class ModelSession:
    """The window and the plan of one model under one spec and one catalog; a new spec or catalog is a new session."""

    catalog: RampCatalog
    spec: Spec
    plan: Plan = field(default_factory=lambda: Plan(0))
    """The plan in force; revision 0 until `start`."""

    def __post_init__(self) -> None:
        self.budget = Budget(
            self.spec.budget.accuracy_loss, self.spec.budget.ramp_overhead, self.spec.budget.confidence
        )
        self.window = FeedbackWindow(self.spec.adaptation.window, self.catalog.ramps)
        self.decisions: list[Decision] = []

    def start(self) -> Decision | None:
        """The first plan, when none is in force for this catalog."""
        return None

    def feed(self, batch: FeedbackBatch) -> Decision | None:
        """Take one batch of feedback; a decision when one is due."""
        self.window.add(batch)
        return None

    def refill(self, batch: FeedbackBatch) -> None:
        """Take a batch that was decided on before a restart: fills the window, decides nothing."""
        self.window.add(batch)

    def describe(self) -> dict[str, Any]:
        """Window, plan and last decisions as plain data, for the HTTP API."""
        return {"records": self.window.added, "plan": self.plan.revision, "reason": Reason.STARTED}
