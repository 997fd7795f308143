"""How long a pass of so many rows occupies the device: the catalog's profile, corrected by what passes really take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from apparate.catalog import RampCatalog
from apparate_worker.plain import by_rows

UP, DOWN = 1.08, 0.98  # a step up is four of those down: the estimate settles where four of five passes are shorter
FAR, IN_A_ROW = 2.0, 3  # so many passes in a row, each so many times off: the estimate is wrong, and moves by that much


class PassTimes:
    """Seconds by rows. What is measured moves the estimate of its size by a step, so that one slow pass does little.

    A size that has not been measured yet is as far from the profile as the one measured last. None is believed to take
    longer than follows from the last: fewer rows take no longer, nor more of them longer for each. So a size that is
    out of use because it was slow comes into use again.
    Written by the device thread, read by any.
    """

    def __init__(self, profile_s: Sequence[float]) -> None:
        """profile_s: [rows + 1], its first entry for no row."""
        if len(profile_s) < 2 or min(profile_s[1:]) <= 0:
            raise ValueError(f"the profile is {list(profile_s)!r:.80}, must have a positive time for one row and more")
        self._profile = list(profile_s)
        self._measured = [0.0] * len(self._profile)
        self._scale, self._last, self._far = 1.0, (1, math.inf), 0

    @classmethod
    def of_catalog(cls, catalog: RampCatalog, most: int) -> PassTimes:
        """From a profile, up to `most` rows."""
        return cls((by_rows(catalog, catalog.full_ms[:, None], most)[:, 0] / 1e3).tolist())

    def of(self, rows: int) -> float:
        """Seconds of a pass of `rows`, from 1 to the most."""
        measured = self._measured[rows]
        if not measured:
            return self._profile[rows] * self._scale
        last, took_s = self._last
        return min(measured, took_s if rows <= last else took_s * rows / last)

    def took(self, rows: int, seconds: float) -> None:
        """Note a pass."""
        before = self.of(rows)
        step = UP if seconds > before else DOWN
        self._far = self._far + 1 if seconds > FAR * before or seconds * FAR < before else 0
        if self._far >= IN_A_ROW:
            step = FAR if seconds > before else 1 / FAR
        self._measured[rows] = after = before * step
        self._scale, self._last = after / self._profile[rows], (rows, after)

    def of_all(self, items: int, most: int) -> float:
        """Seconds to run `items` in passes of at most `most` rows."""
        whole, rest = divmod(items, most)
        return whole * self.of(most) + (self.of(rest) if rest else 0.0)
