"""The accuracy budget kept on the spot, from what one worker released: close the ramps, never wait for anybody.

Three rules, each of which closes the exits:

* the **ledger**: every answer earns `budget`, every early answer that disagrees with the model's own costs 1, credit
  starts at 0 and never exceeds what LEDGER_ANSWERS earn. Without credit for one more disagreement exits are closed, and
  open again by themselves once it is earned. So of n answers at most `budget * n` disagree, and those more that were
  not booked yet when exits closed (the caller bounds them), on any traffic whatever: no assumption about its
  distribution is made.
* the **window**: of any WINDOW_ANSWERS answers in a row, over all workers, at most `budget` of them disagree. Each
  worker keeps its share of that; the ledger alone would let a burst spend at once what was saved for long.
* the **alarm**: an e-process bets on the loss being above the budget, and notices a change long before a well-filled
  ledger is spent. It stays until a new plan comes.

Where only some batches are run to the end (`sampling`), the others' answers are not checked. They earn budget like any
answer, a disagreement found is booked as all those it stands for, and the alarm goes by the checked answers alone. The
window counts what is found. Every batch is checked, as if there were no sampling, until the ledger holds the reserve
for what may go unnoticed, and whenever the alarm's bets rise: **doubt** costs computing, not accuracy.
"""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.adaptation.sampling import cost, reserve

BETS = (5.0, 15.0, 40.0)
ALARM_LEVEL = 1000.0
DOUBT_LEVEL = 2.0  # after one disagreement at a budget of 1 % the next 13 answers are all checked
WINDOW_ANSWERS = 1000  # in which users look at accuracy
LEDGER_ANSWERS = WINDOW_ANSWERS  # credit for one window's budget
REOPEN_CREDIT = 2.0  # open with credit for a disagreement to spare, or each earned credit would be spent at once
LEAST_OF_WINDOW = 3.0  # disagreements that a worker's share allows; with fewer, exits would be closed most of the time


class GuardState(StrEnum):
    """Why exits are open or closed."""

    OPEN = "Open"
    BUDGET_SPENT = "BudgetSpent"
    LOSS_ABOVE_BUDGET = "LossAboveBudget"


class LossMonitor:
    """An e-CUSUM over released answers: three wealth processes that bet on the loss being above `budget`.

    Each answer moves every wealth W to max(W, 1) * (1 + b * (x - budget)), x = 1 for an early answer that disagrees
    with the model's own. The alarm is raised when their mean reaches ALARM_LEVEL, and stays until `reset`.
    Where every answer, whatever came before it, is wrong with no more probability than `budget`, ALARM_LEVEL answers or
    more come before an alarm on average. A burst is not such traffic: a few hard frames of a video in a row raise one
    at any mean loss, and rightly, for nobody knows then how long they go on.
    A budget too large for the standard bets has one of its own, so that no wealth can become negative.
    """

    def __init__(self, budget: float) -> None:
        if not 0.0 < budget < 1.0:
            raise ValueError(f"accuracy budget is {budget}, must be within 0..1")
        self.budget = budget
        self._bets = [b for b in BETS if b * budget < 1.0] or [0.5 / budget]
        self._wealth = [1.0] * len(self._bets)
        self.alarm = False

    @property
    def doubts(self) -> bool:
        """Whether the bets have risen lately."""
        return sum(self._wealth) >= DOUBT_LEVEL * len(self._wealth)

    def observe(self, wrong: npt.NDArray[Any]) -> bool:
        """Take the outcome of answers in order of release, True where one disagrees; whether the alarm is raised."""
        seen = 0
        for at in np.flatnonzero(wrong).tolist() if wrong.any() else ():
            self._correct(at - seen)
            self._wealth = [
                max(w, 1.0) * (1.0 + b * (1.0 - self.budget)) for w, b in zip(self._wealth, self._bets, strict=True)
            ]
            self.alarm = self.alarm or sum(self._wealth) >= ALARM_LEVEL * len(self._wealth)
            seen = at + 1
        self._correct(len(wrong) - seen)
        return self.alarm

    def _correct(self, answers: int) -> None:
        """Move every wealth over answers that are all right; below 1 it starts from 1 again at each of them."""
        if answers:
            shrinks = [1.0 - b * self.budget for b in self._bets]
            self._wealth = [
                max(max(w, 1.0) * q ** (answers - 1), 1.0) * q for w, q in zip(self._wealth, shrinks, strict=True)
            ]

    def reset(self) -> None:
        """Start anew, after a new plan."""
        self._wealth = [1.0] * len(self._bets)
        self.alarm = False


class BudgetLedger:
    """What is left of the accuracy budget, in disagreements. See the module for the rule.

    share, confidence: of batches that are checked at least, and with which the budget is kept then. With a share of 1
    it is kept for certain; with less there is room for the reserve, and for what as many checked answers earn.
    """

    def __init__(
        self, budget: float, answers: int = LEDGER_ANSWERS, *, share: float = 1.0, confidence: float = 0.95
    ) -> None:
        if not 0.0 < budget < 1.0:
            raise ValueError(f"accuracy budget is {budget}, must be within 0..1")
        self.budget = budget
        self._cost, self._reserve = cost(share), reserve(share, confidence)
        self.most = self._reserve + max(budget * answers, REOPEN_CREDIT) * self._cost
        self.credit = 0.0
        self.spent, self.scarce = True, True
        """Without credit for one more disagreement; without the reserve and credit for one found in a sample."""

    @property
    def answers(self) -> int:
        """Right ones that fill it, when it is empty."""
        return math.ceil(self.most / self.budget)

    def observe(self, wrong: npt.NDArray[Any], each: float = 1.0) -> bool:
        """Book answers in order of release, True where one disagrees; whether the budget is spent.

        each: disagreements that one is booked as.
        """
        seen = 0
        for at in np.flatnonzero(wrong).tolist():
            self.credit = min(self.most, self.credit + (at - seen + 1) * self.budget) - each
            seen = at + 1
        self.earn(len(wrong) - seen)
        return self.spent

    def earn(self, answers: int) -> None:
        """Book answers that are right, or that nobody will check."""
        self.credit = min(self.most, self.credit + answers * self.budget)
        self.spent = self.credit < (REOPEN_CREDIT if self.spent else 1.0)
        self.scarce = self.credit < self._reserve + (REOPEN_CREDIT if self.scarce else 1.0) * self._cost


class BudgetWindow:
    """One worker's share of the window, with as many answers of it as one of `workers` gives. See the module.

    Many workers, or a small budget, have a longer window together: each worker's allows LEAST_OF_WINDOW at least.
    """

    def __init__(self, budget: float, workers: int = 1) -> None:
        self._budget, self._seen, self._wrong = budget, 0, deque[int]()
        self.spent = False
        self.share(workers)

    def share(self, workers: int) -> None:
        """Keep the part of one of so many workers from now on; what was seen stays seen."""
        if workers < 1:
            raise ValueError(f"workers is {workers}, must be 1 or more")
        self.answers = max(math.ceil(WINDOW_ANSWERS / workers), math.ceil(LEAST_OF_WINDOW / self._budget))
        """How far back the worker looks."""
        self._most = self._budget * self.answers

    def observe(self, wrong: npt.NDArray[Any]) -> bool:
        """Take the outcome of answers in order of release, True where one disagrees; whether the budget is spent."""
        self._wrong.extend((np.flatnonzero(wrong) + self._seen).tolist())
        self.pass_by(len(wrong))
        return self.spent

    def pass_by(self, answers: int) -> None:
        """Take answers of which no disagreement is known beyond those told already."""
        self._seen += answers
        while self._wrong and self._wrong[0] < self._seen - self.answers:
            self._wrong.popleft()
        self.spent = self._most - len(self._wrong) < (REOPEN_CREDIT if self.spent else 1.0)


class Guard:
    """All rules together, for one of `workers` workers, which checks at least `share` of its batches.

    Raises ValueError for a budget or a share not within 0..1, or no worker.
    """

    def __init__(self, budget: float, workers: int = 1, *, share: float = 1.0, confidence: float = 0.95) -> None:
        self.ledger = BudgetLedger(budget, share=share, confidence=confidence)
        self.window = BudgetWindow(budget, workers)
        self.monitor = LossMonitor(budget)
        self._share = share

    def observe(self, wrong: npt.NDArray[Any], share: float = 1.0) -> GuardState:
        """Take the outcome of the answers of a pass, in order of release, True where an early answer disagrees.

        share: probability with which the pass was drawn to be checked.
        """
        self.ledger.observe(wrong, cost(share))
        self.window.observe(wrong)
        self.monitor.observe(wrong)
        return self.state

    def unchecked(self, answers: int) -> GuardState:
        """Take answers of passes that were not drawn."""
        self.ledger.earn(answers)
        self.window.pass_by(answers)
        return self.state

    @property
    def share(self) -> float:
        """Probability with which to check the next pass: 1 while in doubt."""
        return 1.0 if self.ledger.scarce or self.monitor.doubts else self._share

    @property
    def state(self) -> GuardState:
        """Whether exits may be open now, and if not, why."""
        if self.monitor.alarm:
            return GuardState.LOSS_ABOVE_BUDGET
        return GuardState.BUDGET_SPENT if self.ledger.spent or self.window.spent else GuardState.OPEN

    def new_plan(self) -> None:
        """A newer plan came: the alarm was about the old one. What was spent stays spent."""
        self.monitor.reset()
