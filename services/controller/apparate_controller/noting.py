"""What is told of a decision, of a plan that somebody else put in force, and of a pause: noted, counted and logged."""

from __future__ import annotations

from collections.abc import Iterable

from apparate.adaptation.policy import Decision, Observed, Reason
from apparate.contract.pause import Pause
from apparate.contract.resource import PlanStatus
from apparate.plan import Plan
from apparate_controller.journal import Journal
from apparate_controller.ports import Observer

OWN_REASONS = frozenset(reason.value for reason in Reason)


class Noting:
    """Writes into one model's journal, and tells its observer."""

    def __init__(self, journal: Journal, observer: Observer) -> None:
        self._journal, self._observer = journal, observer
        self.observed = Observed()
        """What the window says of the plan in force: what a person who decides something has before them."""

    def decision(self, decision: Decision, by: str = "") -> None:
        """A decision was taken."""
        self._journal.note(decision, by=by)
        self._observer.decided(decision)

    def plans(self, found: Iterable[PlanStatus], by: str = "") -> None:
        """Plans that are or were in force, oldest first; those that this process knows nothing of are noted."""
        for status in found:
            if status.revision and not self._journal.knows(status.revision):
                self._plan(status, by)

    def _plan(self, status: PlanStatus, by: str) -> None:
        if status.reason in OWN_REASONS:
            reason, message = Reason(status.reason), status.message
        else:
            told = ": ".join(part for part in (status.reason, status.message) if part)
            reason, message = Reason.PUT_BY_HAND, "put there by somebody else" + (f", who says {told}" if told else "")
        seen = self.observed if reason.by_hand else Observed()
        decision = Decision(reason, message, Plan(status.revision), seen)
        self._journal.note(decision, at=status.decided_at, by=by)
        if reason.by_hand:  # others were counted by whoever decided them
            self._observer.decided(decision)

    def pause(self, pause: Pause, revision: int) -> None:
        """Adaptation stands still under plan `revision` from now on, or goes on from it."""
        asked = f"as {pause.by or 'somebody'} asked"
        if pause.paused:
            said = f"plan revision {revision} stays, {asked}; guards still close exits"
            self.decision(Decision(Reason.PAUSED_BY_HAND, said, observed=self.observed), pause.by)
        else:
            said = f"plans follow the traffic again from revision {revision}, {asked}"
            self.decision(Decision(Reason.RESUMED_BY_HAND, said, observed=self.observed), pause.by)
