"""What a model has done since it was loaded, in the words of the protocol's statistics extension.

Requests are counted in the event loop, passes in the thread that reports them; nobody takes a lock, so a reader may see
a count a moment before its duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class Done(Protocol):
    """A pass that has ended; see `apparate_worker.passes.Pass`."""

    items: Sequence[Any]
    started_at: float
    input_s: float
    service_s: float
    queued_s: npt.NDArray[np.float64]


class Duration:
    """How often something happened, and for how long in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, count: int, seconds: float) -> None:
        """`count` times, `seconds` together."""
        self.count += count
        self.ns += int(seconds * 1e9)

    def told(self) -> dict[str, int]:
        """As the extension has it."""
        return {"count": self.count, "ns": self.ns}


COMPUTE = ("compute_input", "compute_infer", "compute_output")
KINDS = ("success", "fail", "queue", *COMPUTE, "cache_hit")


class Statistics:
    """Of one version of one model."""

    def __init__(self) -> None:
        self._kinds = {kind: Duration() for kind in KINDS}
        self._success, self._fail = self._kinds["success"], self._kinds["fail"]
        self._batches: dict[int, dict[str, Duration]] = {}
        self._last_inference_ms = self._inferences = self._executions = 0

    def answered(self, seconds: float) -> None:
        """A request got its answer, `seconds` after it came. Event loop only."""
        self._success.add(1, seconds)

    def given_again(self, seconds: float) -> None:
        """A request got an answer that was kept. Event loop only."""
        self._success.add(1, seconds)
        self._kinds["cache_hit"].add(1, seconds)

    def failed(self, seconds: float) -> None:
        """A request that was taken, or found no room, got none. Event loop only."""
        self._fail.add(1, seconds)

    def passed(self, done: Done) -> None:
        """A pass has reached the end of the model. Reporting thread only.

        A request counts once, in the pass of its first item. Computing is from there to the pass's last answer, not to
        the end of the model; answers leave as they come, so there is nothing to tell of compute_output.
        """
        size = len(done.items)
        first = [row for row, item in enumerate(done.items) if item.index == 0]
        spent = {
            "compute_input": done.input_s,
            "compute_infer": done.service_s - done.input_s,
            "compute_output": 0.0,
        }
        batch = self._batches.setdefault(size, {kind: Duration() for kind in COMPUTE})
        for kind, seconds in spent.items():
            batch[kind].add(1, seconds)
            self._kinds[kind].add(len(first), seconds * len(first))
        self._kinds["queue"].add(len(first), float(done.queued_s[first].sum()))
        self._last_inference_ms = int(done.started_at * 1e3)
        self._inferences += size
        self._executions += 1

    def told(self, name: str, version: str) -> dict[str, Any]:
        """As the extension has it. Any thread."""
        return {
            "name": name,
            "version": version,
            "last_inference": self._last_inference_ms,
            "inference_count": self._inferences,
            "execution_count": self._executions,
            "inference_stats": {kind: one.told() for kind, one in self._kinds.items()},
            "batch_stats": [
                {"batch_size": size, **{kind: one.told() for kind, one in batch.items()}}
                for size, batch in sorted(self._batches.copy().items())
            ],
        }
