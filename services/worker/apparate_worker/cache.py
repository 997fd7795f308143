"""Answers that are given again: the model's own, by the content of the input, bounded by bytes and age.

Only final answers are kept, also of requests that left early, once their rows have reached the end of the model. An
early answer may be wrong; the guard sees it once, and would not see it again from here. A final answer never disagrees
with the model, so giving it again spends nothing of the accuracy budget, satisfies every limit that a request may set
for its exit, and does not depend on the plan. It is no feedback either: nothing was computed.

One cache belongs to one version of one model, so that a new version starts with an empty one.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ENTRY_BYTES = 300  # of an entry beside its scores: key, array, places in the table


class Cache:
    """Class scores [N, C] by the content of a request, least recently used first to go. Event loop only."""

    def __init__(self, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes, self._ttl_s, self._clock = max_bytes, ttl_s, clock
        self._entries: OrderedDict[bytes, tuple[float, Array]] = OrderedDict()
        self.bytes = self.hits = self.misses = 0

    def find(self, key: bytes) -> Array | None:
        """What is known of a request; counted."""
        entry = self._entries.get(key)
        if entry is not None and self._clock() - entry[0] >= self._ttl_s:
            self._drop(key)
            entry = None
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry[1]

    def keep(self, key: bytes, scores: Array) -> None:
        """Take the model's own answer to a request."""
        if key in self._entries:
            self._drop(key)
        self._entries[key] = (self._clock(), scores)
        self.bytes += scores.nbytes + ENTRY_BYTES
        while self.bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        self.bytes -= self._entries.pop(key)[1].nbytes + ENTRY_BYTES


class Remember:
    """Collects the final scores of one request's items; with the last they are kept. Event loop only."""

    def __init__(self, cache: Cache, key: bytes, items: int) -> None:
        self._cache, self._key, self._left = cache, key, items
        self._items, self._scores = items, np.zeros((0, 0), np.float32)

    def __call__(self, index: int, scores: Array) -> None:
        """Take the final scores [C] of an item."""
        if not self._scores.size:
            self._scores = np.empty((self._items, len(scores)), np.float32)
        self._scores[index] = scores
        self._left -= 1
        if not self._left:
            self._cache.keep(self._key, self._scores)


def content_key(inputs: Mapping[str, Array]) -> bytes:
    """SHA-256 over names, datatypes, shapes and values: no other input has the same, also none that somebody makes."""
    found = hashlib.sha256()
    for name, values in inputs.items():
        found.update(f"{name} {values.dtype.str} {values.shape};".encode())
        found.update(np.ascontiguousarray(values).view(np.uint8).reshape(-1).data)
    return found.digest()
