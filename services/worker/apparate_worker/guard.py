"""The accuracy budget kept on the spot by one worker, whatever happens to Redis, controller or API server."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.adaptation.guard import Guard, GuardState
from apparate_worker.engine import Schedule


class WorkerGuard:
    """Decides before each pass whether the plan's exits are open. The rules are `apparate.adaptation.guard`'s.

    An alarm stays until a newer plan than the one that raised it. A spent ledger opens again by itself.
    """

    def __init__(self, budget: float, ramps: int) -> None:
        self._guard, self._ramps = Guard(budget), ramps
        self._plan: Schedule | None = None
        self._closed: Schedule | None = None
        self.alarms = 0
        self.state = GuardState.OPEN

    def admit(self, schedule: Schedule) -> Schedule:
        """The schedule for the next pass: the plan's own, or the same ramps closed."""
        if schedule is not self._plan:
            self._plan, self._closed = schedule, Schedule(schedule.plan.closed(), self._ramps)
            self._guard.new_plan()
            self.state = self._guard.state
        if self.state is GuardState.OPEN or self._closed is None:
            return schedule
        return self._closed

    @property
    def guarded(self) -> bool:
        """Whether the alarm has closed exits that the plan wants open. A ledger that is not filled yet is no alarm."""
        return self.state is GuardState.LOSS_ABOVE_BUDGET and self._plan is not None and self._plan.plan.exits_open

    def observe(self, wrong: npt.NDArray[Any]) -> GuardState:
        """Take the outcome of a pass in order of release: True for an early answer that disagrees with the model's."""
        before = self.state
        self.state = self._guard.observe(np.asarray(wrong, bool))
        if self.state is GuardState.LOSS_ABOVE_BUDGET and before is not self.state:
            self.alarms += 1
        return self.state
