"""The guard of a worker whose accuracy budget may change while it serves."""

from __future__ import annotations

from apparate.adaptation.guard import Guard
from apparate_worker.engine import Schedule
from apparate_worker.guard import WorkerGuard


class AdjustableGuard(WorkerGuard):
    """A WorkerGuard that takes another budget between two passes.

    The new budget starts with empty books. It does not end an alarm: that stays until a newer plan, as ever.
    """

    def __init__(self, budget: float, ramps: int) -> None:
        super().__init__(budget, ramps)
        self._kept = self._wanted = budget

    def keep(self, budget: float) -> None:
        """Keep this budget from the next pass that may change it. Any thread."""
        self._wanted = budget

    def admit(self, schedule: Schedule) -> Schedule:
        """See WorkerGuard."""
        if self._wanted != self._kept and not (self.guarded and schedule is self._plan):
            self._kept = self._wanted
            self._book([])
            self._guard = Guard(self._kept)
            self._plan = None
        return super().admit(schedule)
