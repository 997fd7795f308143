"""The accuracy budget when only some batches are run to the end, so that most early answers are never checked.

Before a batch runs it is drawn with a known probability, its share, whether it is checked, by a generator that has
nothing to do with what is in it. So the checked answers stand for the others: one disagreement among them stands for
1 / share of them on average. On average is not enough for a promise, because a few may slip through one after the
other. What is booked is therefore somewhat more than 1 / share (`cost`), and some of the budget is held back
(`reserve`).

Why that suffices, on any traffic whatever. Give each disagreement that comes the factor exp(g), and exp(-TILT) more
where it is found. With g = -log(1 - share * (1 - exp(-TILT))) the product has an expectation of 1 at any time, and by
Ville's inequality stays below 1 / delta for ever with probability 1 - delta: g * all - TILT * found < log(1 / delta),
which is all < cost * found + reserve. Only the draws are random here, not the traffic; the share may change with what
was found before. It counts disagreements of different batches: where several come in one batch they are found
together or not at all, and it takes as many times the reserve.
"""

from __future__ import annotations

import math

TILT = 0.5  # more asks for less reserve and a higher cost: at a share of 0.1, 75 disagreements and 12.5 each


def cost(share: float) -> float:
    """Disagreements that one is booked as, when it is found in a batch that is checked with probability `share`."""
    return 1.0 if share >= 1.0 else TILT / _weight(share)


def reserve(share: float, confidence: float) -> float:
    """Disagreements to hold back, so that with probability `confidence` no more come than are booked. 0 at 1."""
    return 0.0 if share >= 1.0 else -math.log1p(-confidence) / _weight(share)


def tuned_share(share: float) -> float:
    """Part of the budget that plans are tuned to: at a loss of that, what is booked is the budget on average."""
    return 1.0 if share >= 1.0 else 1.0 / (share * cost(share))


def _weight(share: float) -> float:
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share of checked batches is {share}, must be above 0 and at most 1")
    return -math.log1p(-share * -math.expm1(-TILT))
