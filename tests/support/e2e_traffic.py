"""The load generator in the cluster, and what it says became of its requests."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from apparate_demo.traffic.windows import WINDOW
from support.e2e import DEMO, TUTORIAL, Stage
from support.kube import KubectlFailed

BUDGET = 0.01
LEAST_AGREEMENT = 1 - BUDGET
MOST_WRONG = BUDGET * WINDOW
"""Disagreements in one window: each worker's guard keeps its share of them."""
Line = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """Lines of the load generator about one span of time."""

    seconds: list[Line]
    windows: list[Line]
    failures: list[Line]

    @property
    def answered(self) -> int:
        """Requests with an answer."""
        return sum(one["answered"] for one in self.seconds)


class Load:
    """The Job that sends frames for as long as the tests run."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._kept: list[Line] = []

    def start(self) -> None:
        """Have it running: what is there and runs stays; returns when answers come."""
        if not self._runs():
            self._stage.cluster.kubectl("delete", "job", "load", "-n", DEMO, "--ignore-not-found", "--timeout=60s")
            self._stage.apply_file(TUTORIAL / "load.yaml")
        self._stage.wait("the load generator has answers", lambda: self.since(time.time() - 5).answered, within=60)

    def stop(self) -> None:
        """End it; what it has said is kept."""
        self._kept = self.lines()
        self._stage.cluster.kubectl("delete", "job", "load", "-n", DEMO, "--ignore-not-found", "--timeout=60s")

    def _runs(self) -> bool:
        pods = self._stage.pods(DEMO, "app=load")
        return any(pod.status.phase in ("Pending", "Running") for pod in pods)

    def lines(self) -> list[Line]:
        """All it has said so far."""
        try:
            text = self._stage.cluster.kubectl("logs", "-n", DEMO, "-l", "app=load", "--tail=-1")
        except KubectlFailed:
            text = ""
        return self._kept + [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def since(self, begin: float, end: float = float("inf")) -> Seen:
        """What it said of requests sent in a span of time; windows that touch it count."""
        lines = self.lines()
        return Seen(
            [one for one in lines if one["kind"] == "second" and begin <= one["at"] < end],
            [one for one in lines if one["kind"] == "window" and one["end"] >= begin and one["begin"] < end],
            [one for one in lines if one["kind"] == "failure" and begin <= one["sent"] < end],
        )

    def told(self, until: float) -> None:
        """Wait until it has told of all requests that were sent before `until`."""
        self._stage.wait("the load generator tells of the last seconds", lambda: self.since(until).seconds, within=30)

    def windows_after(self, begin: float, count: int, within: float) -> list[Line]:
        """`count` whole windows of 1,000 answers that began after `begin`."""
        whole = lambda: [w for w in self.since(begin).windows if w["begin"] >= begin]  # noqa: E731
        found: list[Line] = self._stage.wait(
            f"{count} windows of 1,000 answers", lambda: (w := whole()) if len(whole()) >= count else [], within=within
        )
        return found

    def check(self, begin: float, *, allow: Callable[[Line], bool] = lambda _: False) -> Seen:
        """No request from `begin` until now failed but those that are allowed to, and accuracy was within budget."""
        now = time.time()
        self.told(now)
        seen = self.since(begin, now)
        assert seen.answered > 0, f"no answers from {begin:.0f} until {now:.0f}"
        failed = [one for one in seen.failures if not allow(one)]
        assert not failed, f"{len(failed)} requests failed, {seen.answered} were answered; first: {failed[:5]}"
        self.check_accuracy()
        return seen

    def check_accuracy(self) -> None:
        """Each window of 1,000 answers so far was within budget."""
        for one in (one for one in self.lines() if one["kind"] == "window"):
            wrong = round((1 - one["agreement"]) * one["answers"])
            assert wrong <= MOST_WRONG, f"{wrong} of 1,000 answers were not the plain model's: {one}"
