"""What became of requests, told by the second and by windows of 1,000 answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from apparate_demo.oip import FINAL

WINDOW = 1000
"""Answers whose agreement is looked at together."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one request. Times are seconds of the wall clock: events elsewhere are put beside them."""

    protocol: str
    sent: float
    done: float
    label: int = -1
    """-1: there was no answer, `error` says why."""
    agrees: bool = False
    """Whether the answer is the plain model's."""
    exit_ramp: int = FINAL
    revision: int = 0
    error: str = ""


@dataclass
class Second:
    """One second of one protocol: a line of the log."""

    at: int
    """Seconds since 1970 in which the requests were sent."""
    protocol: str
    answered: int
    failed: int
    early: int
    revision: int
    """The highest plan revision among the answers."""
    p50_ms: float | None
    kind: str = "second"


@dataclass
class Window:
    """1,000 answers in the order in which they came, of both protocols."""

    begin: float
    end: float
    answers: int
    agreement: float
    """Share that is the plain model's answer (0..1)."""
    early: float
    """Share that left at a ramp."""
    revision: int
    p50_ms: float
    kind: str = "window"


@dataclass
class Failure:
    """One request without an answer."""

    sent: float
    done: float
    protocol: str
    error: str
    kind: str = "failure"


def seconds(results: Iterable[Result], protocol: str, at: int) -> Second:
    """The line of one second."""
    taken = list(results)
    answered = [one for one in taken if one.label >= 0]
    return Second(
        at,
        protocol,
        len(answered),
        len(taken) - len(answered),
        sum(one.exit_ramp != FINAL for one in answered),
        max((one.revision for one in answered), default=0),
        round(median((one.done - one.sent) * 1e3 for one in answered), 3) if answered else None,
    )


def window(results: Sequence[Result]) -> Window:
    """The line of some answers."""
    n = len(results)
    return Window(
        results[0].done,
        results[-1].done,
        n,
        sum(one.agrees for one in results) / n,
        sum(one.exit_ramp != FINAL for one in results) / n,
        max(one.revision for one in results),
        round(median((one.done - one.sent) * 1e3 for one in results), 3),
    )


@dataclass
class Ledger:
    """Takes results as they come and gives lines as they are due."""

    late_s: float
    """How long after a second ended its last answers may come; later ones are told with a later second."""
    _by_second: dict[tuple[str, int], list[Result]] = field(default_factory=dict)
    _window: list[Result] = field(default_factory=list)
    _lines: list[dict[str, Any]] = field(default_factory=list)

    def take(self, one: Result) -> None:
        """Book one result."""
        self._by_second.setdefault((one.protocol, int(one.sent)), []).append(one)
        if one.label < 0:
            self._lines.append(asdict(Failure(one.sent, one.done, one.protocol, one.error)))
            return
        self._window.append(one)
        if len(self._window) == WINDOW:
            self._lines.append(asdict(window(self._window)))
            self._window.clear()

    def due(self, now: float) -> Iterator[dict[str, Any]]:
        """Lines that are ready at `now`; infinity for all that is left."""
        lines, self._lines = self._lines, []
        yield from lines
        for key in sorted(self._by_second, key=lambda key: key[1]):
            if key[1] + 1 + self.late_s <= now:
                yield asdict(seconds(self._by_second.pop(key), *key))
