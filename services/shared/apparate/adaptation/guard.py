"""The accuracy budget kept on the spot: notices that released answers disagree more often than allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BETS = (5.0, 15.0, 40.0)
ALARM_LEVEL = 1000.0


class LossMonitor:
    """An e-CUSUM over released answers: three wealth processes that bet on the loss being above `budget`.

    Each answer moves every wealth W to max(W, 1) * (1 + b * (x - budget)), x = 1 for an early answer that disagrees
    with the model's own. The alarm is raised when their mean reaches ALARM_LEVEL, and stays until `reset`.
    Source: algorithm of the e-CUSUM; bets and level were chosen for a budget of 1 %.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self._bets = np.array([b for b in BETS if b * budget < 1.0] or [0.5 / budget])
        self._wealth = np.ones(len(self._bets))
        self.alarm = False

    def observe(self, wrong: npt.NDArray[Any]) -> bool:
        """Take the outcome of answers in order of release, True where one disagrees; whether the alarm is raised."""
        for x in np.asarray(wrong, bool):
            self._wealth = np.maximum(self._wealth, 1.0) * (1.0 + self._bets * (float(x) - self.budget))
            if self._wealth.mean() >= ALARM_LEVEL:
                self.alarm = True
        return self.alarm

    def reset(self) -> None:
        """Start anew, after a new plan."""
        self._wealth[:] = 1.0
        self.alarm = False
