"""The last decisions of one model with their time, for people."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime

from apparate.adaptation.policy import Decision, Observed, Reason

KEPT = 100


@dataclass(frozen=True)
class Noted:
    """One decision; `times` counts equal ones in a row that changed no plan."""

    at: str
    """Wall time, ISO 8601."""
    reason: Reason
    message: str
    revision: int | None
    """Of the new plan; None when the plan in force stayed."""
    observed: Observed
    times: int = 1


class Journal:
    """A bounded list of decisions, newest last."""

    def __init__(self, kept: int = KEPT) -> None:
        self._noted: deque[Noted] = deque(maxlen=kept)

    def note(self, decision: Decision) -> Noted:
        """Add a decision; one that changes no plan takes the place of an equal one before it."""
        revision = decision.plan.revision if decision.plan else None
        times = 1
        if revision is None and self._noted:
            last = self._noted[-1]
            if last.revision is None and last.reason is decision.reason:
                times = self._noted.pop().times + 1
        noted = Noted(now(), decision.reason, decision.message, revision, decision.observed, times)
        self._noted.append(noted)
        return noted

    def newest_first(self) -> list[Noted]:
        """What was noted."""
        return list(reversed(self._noted))


def now() -> str:
    """Wall time as text, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
