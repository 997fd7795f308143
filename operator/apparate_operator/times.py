"""When Jobs began and ended by this machine's clock: that of the control plane, which dates them, may be off.

By one that is an hour ahead a failed preparation would be tried again without any pause, by one behind not for an hour.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from apparate_operator.observed import Observed

APART = timedelta(seconds=5)  # what is told later than that, or before it has happened, was dated by another clock


@dataclass(frozen=True)
class Seen:
    """When a Job was first seen to have begun, and to have ended; None before."""

    began: datetime | None = None
    ended: datetime | None = None


class Times:
    """Remembers what it saw of the Jobs of each model, by the model's uid."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Seen]] = {}

    def own(self, uid: str, observed: Observed, now: datetime) -> Observed:
        """What is there, its Jobs dated by this machine's clock where the two differ."""
        known, fresh = self._known.get(uid, {}), dict[str, Seen]()
        attempts = []
        for one in observed.attempts:
            before, watched = known.get(one.name, Seen()), one.name in known
            began = _moment(one.started_at, before.began, now, watched=watched)
            ended = _moment(one.finished_at, before.ended, now, watched=watched)
            fresh[one.name] = Seen(began, ended)
            attempts.append(replace(one, started_at=_text(began), finished_at=_text(ended)))
        self._known[uid] = fresh
        return replace(observed, attempts=tuple(attempts)) if attempts else observed

    def forget(self, uid: str) -> None:
        """A model is gone."""
        self._known.pop(uid, None)


def _moment(told: str, known: datetime | None, now: datetime, *, watched: bool) -> datetime | None:
    """When it happened: as it was told, unless this process watched it happen at another time, or it is yet to come."""
    if not told or known is not None:
        return known
    try:
        moment = datetime.fromisoformat(told)
    except ValueError:
        return now
    if watched:
        return moment if abs(now - moment) <= APART else now
    return min(moment, now)


def _text(moment: datetime | None) -> str:
    return moment.astimezone(UTC).isoformat() if moment is not None else ""
