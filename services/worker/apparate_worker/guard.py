"""The accuracy budget kept on the spot by one worker, whatever happens to Redis, controller or API server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apparate.adaptation.guard import Guard, GuardState
from apparate.contract.resource import Budget
from apparate_worker.engine import Schedule

BOOK_AT = 32  # right answers that may wait to be booked: a third of what earns one disagreement at 1 %


@dataclass(frozen=True)
class Promise:
    """What a guard keeps: the budget, for certain or, where a share of the batches is checked, with a confidence."""

    budget: float
    share: float = 1.0
    confidence: float = 1.0

    @classmethod
    def of(cls, budget: Budget, share: float) -> Promise:
        """For a spec's budget and the least share of batches that are checked."""
        return cls(budget.accuracy_loss, share, budget.confidence if share < 1.0 else 1.0)

    def guard(self, workers: int) -> Guard:
        """One with empty books."""
        return Guard(self.budget, workers, share=self.share, confidence=self.confidence)


class WorkerGuard:
    """Decides before each pass whether the plan's exits are open, and how likely it is to be checked. The rules are
    `apparate.adaptation.guard`'s.

    An alarm stays until a newer plan than the one that raised it. A spent budget opens again by itself. Another promise
    starts with empty books; it does not end an alarm.
    """

    def __init__(self, promise: Promise | float, workers: int = 1) -> None:
        self._kept = self._wanted = promise if isinstance(promise, Promise) else Promise(promise)
        self._guard, self._workers = self._kept.guard(workers), workers
        self._plan: Schedule | None = None
        self._right = 0
        self.alarms = 0
        self.state = GuardState.OPEN

    def keep(self, promise: Promise | float, workers: int = 1) -> None:
        """Keep this, or this budget for certain, as one of so many workers, from the next pass that may change it. Any
        thread."""
        self._wanted, self._workers = promise if isinstance(promise, Promise) else Promise(promise), workers

    def admit(self, schedule: Schedule) -> Schedule:
        """The schedule for the next pass: the plan's own, or the same ramps closed."""
        if self._wanted != self._kept and not (self.guarded and schedule is self._plan):
            self._kept = self._wanted
            self._book([])
            self._guard = self._kept.guard(self._workers)
            self._plan = None
        self._guard.window.share(self._workers)
        if schedule is not self._plan:
            self._book([])
            self._plan = schedule
            self._guard.new_plan()
            self.state = self._guard.state
        return schedule if self.state is GuardState.OPEN else schedule.closed

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
        most = self._guard.window.answers  # more of them say no more
        if self._kept.share < 1.0:
            most = max(most, self._guard.ledger.answers)
        self._right = min(self._right + answers, most)

    @property
    def share(self) -> float:
        """Probability with which to check the next pass that may let answers go."""
        return self._guard.share

    @property
    def samples(self) -> bool:
        """Whether most passes go unchecked, but for moments of doubt."""
        return self._kept.share < 1.0 and not self._guard.ledger.scarce

    def observe(self, wrong: Sequence[bool], share: float = 1.0) -> GuardState:
        """Take the outcome of a pass in order of release: True for an early answer that disagrees with the model's.

        share: probability with which the pass was drawn to be checked. Right answers are booked some at a time, in the
        same order; that changes nothing but when exits open again.
        """
        doubts = self._kept.share < 1.0 and self._guard.monitor.doubts  # while all are checked, which is to end soon
        if not any(wrong) and self._right + len(wrong) < BOOK_AT and not doubts:
            self._right += len(wrong)
            return self.state
        return self._book(wrong, share)

    def unchecked(self, answers: int) -> None:
        """Note answers of a pass that was not drawn."""
        self.state = self._guard.unchecked(answers)

    def _book(self, wrong: Sequence[bool], share: float = 1.0) -> GuardState:
        before, outcomes = self.state, [False] * self._right + list(wrong)
        self._right = 0
        if outcomes:
            self.state = self._guard.observe(np.array(outcomes), share)
        if self.state is GuardState.LOSS_ABOVE_BUDGET and before is not self.state:
            self.alarms += 1
        return self.state
