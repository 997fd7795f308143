"""The last decisions of one model with their time, and whether it is paused: for people, and kept over restarts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from apparate.adaptation.policy import Decision, Observed
from apparate.contract.pause import Pause, held

KEPT = 100
LONGEST = 4096  # characters of a message, as in a status: with KEPT the bound of what is kept in Redis
_DECISION = "decision:"
_PAUSE = "pause"


@dataclass(frozen=True)
class Noted:
    """One decision; `times` counts equal ones in a row that changed no plan."""

    at: str
    """Wall time, ISO 8601."""
    reason: str
    """A policy.Reason, or one that another version of the controller wrote."""
    message: str
    revision: int | None
    """Of the new plan; None when the plan in force stayed."""
    observed: Observed
    times: int = 1
    by: str = ""
    """Who asked for it; empty for the controller's own, and when it is not known."""

    @cached_property
    def text(self) -> str:
        """As it is kept."""
        return json.dumps(asdict(self))

    @classmethod
    def load(cls, text: str) -> Noted:
        """From what `text` gave, by this version or one that knew less. Raises ValueError for anything else."""
        try:
            told: dict[str, Any] = json.loads(text)
            seen = told.get("observed") or {}
            known = {name: type(plain)(seen[name]) for name, plain in vars(Observed()).items() if name in seen}
            revision = told.get("revision")
            return cls(
                str(told["at"]),
                str(told["reason"]),
                str(told.get("message", "")),
                None if revision is None else int(revision),
                Observed(**known),
                int(told.get("times", 1)),
                str(told.get("by", "")),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{text[:80]!r} is no decision: {error}") from None


class Journal:
    """A bounded list of decisions, newest last, and the pause that holds.

    Both live in fields of the hash that the progress is in: `restore` reads them once, `changes` are what it lacks.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self.pause: Pause | None = None
        """None until somebody says something."""
        self._kept, self._next = kept, 1
        self._noted: dict[int, Noted] = {}
        self._stored: dict[str, str] = {}
        """What the hash is known to hold of it."""
        self._restored = False

    def note(self, decision: Decision, *, at: str = "", by: str = "") -> Noted:
        """Add a decision; one that changes no plan takes the place of an equal one before it, unless a person asked."""
        revision = decision.plan.revision if decision.plan else None
        times = 1
        if revision is None and self._noted and not decision.reason.by_hand:
            newest = max(self._noted)
            if self._noted[newest].revision is None and self._noted[newest].reason == decision.reason:
                times = self._noted.pop(newest).times + 1
        message = decision.message[:LONGEST]
        noted = Noted(at or now(), decision.reason.value, message, revision, decision.observed, times, by)
        self._add(noted)
        return noted

    def withdraw(self, revision: int) -> None:
        """The newest decision, if it is of this revision, never came into force."""
        newest = max(self._noted, default=None)
        if newest is not None and self._noted[newest].revision == revision:
            del self._noted[newest]

    def knows(self, revision: int) -> bool:
        """Whether it has the decision for this revision of the plan."""
        return any(one.revision == revision for one in self._noted.values())

    def newest_first(self) -> list[Noted]:
        """What was noted."""
        return list(reversed(self._noted.values()))

    def hold(self, said: Pause) -> tuple[Pause, bool]:
        """Take note of what the document says of pausing: (what holds now, whether that is new)."""
        before, after = self.pause, held(self.pause, said)
        changed = after.paused != (before is not None and before.paused)
        if after is not before and not after.since:
            after = replace(after, since=now())
        self.pause = after
        return after, changed

    def restore(self, stored: Mapping[str, str]) -> None:
        """Take up what another process kept, before what was noted here already. Only once: after that, this knows."""
        if self._restored:
            return
        self._restored = True
        self._stored = {name: text for name, text in stored.items() if name == _PAUSE or name.startswith(_DECISION)}
        if self.pause is None and _PAUSE in stored:
            self.pause = Pause.load(stored[_PAUSE])
        here, self._noted = list(self._noted.values()), dict(_decisions(self._stored))
        self._next = max(self._noted, default=0) + 1
        for one in here:
            self._add(one)
        self._forget()

    def changes(self, *, everything: bool = False) -> tuple[dict[str, str], list[str]]:
        """(fields to set, fields to remove) so that the hash has what is here; all when it may have lost some."""
        wanted = {f"{_DECISION}{number}": one.text for number, one in self._noted.items()}
        if self.pause is not None:
            wanted[_PAUSE] = self.pause.dump()
        fresh = {name: text for name, text in wanted.items() if everything or self._stored.get(name) != text}
        return fresh, [name for name in self._stored if name not in wanted]

    def settled(self, fields: Mapping[str, str], removed: Iterable[str]) -> None:
        """These changes are stored."""
        self._stored.update(fields)
        for name in removed:
            self._stored.pop(name, None)

    def _add(self, noted: Noted) -> None:
        self._noted[self._next] = noted
        self._next += 1
        self._forget()

    def _forget(self) -> None:
        for number in list(self._noted)[: -self._kept]:
            del self._noted[number]


def _decisions(stored: Mapping[str, str]) -> list[tuple[int, Noted]]:
    """The decisions among stored fields, oldest first; what cannot be read is left out."""
    found = []
    for name, text in stored.items():
        number = name.removeprefix(_DECISION)
        if name.startswith(_DECISION) and number.isdecimal():
            try:
                found.append((int(number), Noted.load(text)))
            except ValueError:
                continue
    return sorted(found, key=lambda one: one[0])


def now() -> str:
    """Wall time as text, for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
