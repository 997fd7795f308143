"""The paper's trigger for tuning: the agreement of the last 16 answers. Kept to compare with.

At a budget of 1 % a single disagreement takes a window of 16 below 99 %, so this fires at every disagreement and goes
on for 16 requests. The default watches with `apparate.adaptation.guard` instead.
"""

from __future__ import annotations

from collections import deque

WINDOW = 16  # requests, from the paper


class RecentAgreement:
    """Mean agreement of the newest `size` answers against the budget."""

    def __init__(self, max_loss: float, size: int = WINDOW) -> None:
        self.max_loss = max_loss
        self._recent: deque[bool] = deque(maxlen=size)

    def observe(self, agrees: bool) -> bool:
        """Take one answer in order of release; whether to tune thresholds now. Silent until the window fills."""
        self._recent.append(agrees)
        size = self._recent.maxlen or 0
        wrong = size - sum(self._recent)
        return len(self._recent) == size and wrong > self.max_loss * size
