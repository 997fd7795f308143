"""Exact binomial limits: how many disagreements still certify a loss, and what a count proves.

Written in logarithms with the standard library, so that the product needs no scipy.
"""

from __future__ import annotations

import math
from functools import lru_cache

BISECTIONS = 60  # halvings of 0..1: below float64's resolution


@lru_cache(maxsize=4096)
def tail(count: int, n: int, share: float) -> float:
    """P[Bin(n, share) <= count]."""
    if count < 0:
        return 0.0
    if count >= n or share <= 0.0:
        return 1.0
    if share >= 1.0:
        return 0.0
    log_odds, term = math.log(share) - math.log1p(-share), n * math.log1p(-share)
    terms = [term]
    for k in range(1, count + 1):
        term += math.log(n - k + 1) - math.log(k) + log_odds
        terms.append(term)
    largest = max(terms)
    return min(1.0, math.exp(largest) * math.fsum(math.exp(t - largest) for t in terms))


@lru_cache(maxsize=1024)
def certified_count(n: int, loss: float, delta: float) -> int:
    """Most disagreements among `n` that show a loss of no more than `loss` at confidence 1 - `delta`; -1: none do.

    max{k : P[Bin(n, loss) <= k] <= delta}.
    """
    low, high = -1, n
    while high - low > 1:  # the tail rises with k
        middle = (low + high) // 2
        if tail(middle, n, loss) <= delta:
            low = middle
        else:
            high = middle
    return low


@lru_cache(maxsize=1024)
def upper_bound(count: int, n: int, delta: float) -> float:
    """Clopper-Pearson: the largest loss that `count` disagreements among `n` allow for at confidence 1 - `delta`."""
    if n <= 0 or count >= n:
        return 1.0
    low, high = count / n, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if tail(count, n, middle) > delta:
            low = middle
        else:
            high = middle
    return high
