"""The accuracy budget kept on the spot by one worker, whatever happens to Redis, controller or API server."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from apparate.adaptation.guard import Guard, GuardState
from apparate_worker.engine import Schedule

BOOK_AT = 32  # right answers that may wait to be booked: a third of what earns one disagreement at 1 %


class WorkerGuard:
    """Decides before each pass whether the plan's exits are open. The rules are `apparate.adaptation.guard`'s.

    An alarm stays until a newer plan than the one that raised it. A spent budget opens again by itself. Another budget
    starts with empty books; it does not end an alarm.
    """

    def __init__(self, budget: float, ramps: int, workers: int = 1) -> None:
        self._guard, self._ramps = Guard(budget, workers), ramps
        self._kept = self._wanted = budget
        self._workers = workers
        self._plan: Schedule | None = None
        self._closed: Schedule | None = None
        self._right = 0
        self.alarms = 0
        self.state = GuardState.OPEN

    def keep(self, budget: float, workers: int = 1) -> None:
        """Keep this budget, as one of so many workers, from the next pass that may change it. Any thread."""
        self._wanted, self._workers = budget, workers

    def admit(self, schedule: Schedule) -> Schedule:
        """The schedule for the next pass: the plan's own, or the same ramps closed."""
        if self._wanted != self._kept and not (self.guarded and schedule is self._plan):
            self._kept = self._wanted
            self._book([])
            self._guard = Guard(self._kept, self._workers)
            self._plan = None
        self._guard.window.share(self._workers)
        if schedule is not self._plan:
            self._book([])
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

    @property
    def spent(self) -> bool:
        """Whether exits that the plan wants open are closed until the answers to come have earned them."""
        return self.state is GuardState.BUDGET_SPENT and self._plan is not None and self._plan.plan.exits_open

    def served_plain(self, answers: int) -> None:
        """Note answers of the plain model: none is wrong, and they earn budget for the plan that comes."""
        self._right = min(self._right + answers, self._guard.window.answers)  # more of them say no more

    def observe(self, wrong: Sequence[bool]) -> GuardState:
        """Take the outcome of a pass in order of release: True for an early answer that disagrees with the model's.

        Right answers are booked some at a time, in the same order; that changes nothing but when exits open again.
        """
        if not any(wrong) and self._right + len(wrong) < BOOK_AT:
            self._right += len(wrong)
            return self.state
        return self._book(wrong)

    def _book(self, wrong: Sequence[bool]) -> GuardState:
        before, outcomes = self.state, [False] * self._right + list(wrong)
        self._right = 0
        if outcomes:
            self.state = self._guard.observe(np.array(outcomes))
        if self.state is GuardState.LOSS_ABOVE_BUDGET and before is not self.state:
            self.alarms += 1
        return self.state
