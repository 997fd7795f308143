"""Plans that were in force before, and one of them in force again: under a new revision, as workers refuse old ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from apparate.adaptation.policy import Reason
from apparate.contract.resource import PlanStatus
from apparate.contract.status import bounded
from apparate.plan import MAX_REVISION

HISTORY = 10
"""Plans kept to roll back to; the resource has no room for more."""
Json = dict[str, Any]


class NoSuchPlan(ValueError):
    """A plan cannot be put in force again; the message says why."""


def earlier(history: Iterable[PlanStatus], revision: int, *, in_force: int, catalog: str) -> PlanStatus:
    """The plan `revision` of a history, for a model that has `catalog`. Raises NoSuchPlan."""
    known = {plan.revision: plan for plan in history}
    old = known.get(revision)
    if old is None and revision and revision == in_force:
        raise NoSuchPlan(f"plan revision {revision} is in force already")
    if old is None:
        there = ", ".join(map(str, sorted(known, reverse=True))) or "none"
        raise NoSuchPlan(f"plan revision {revision} is not in the history; there are: {there}")
    if old.catalog != catalog:
        raise NoSuchPlan(f"plan revision {revision} is for catalog {old.catalog}, the model has {catalog}")
    return old


def rolled_back(old: PlanStatus, revision: int, now: str, by: str = "") -> PlanStatus:
    """The plan `old` under `revision`, decided at `now` (RFC 3339) by a person, `by` name if that is known."""
    message = f"revision {old.revision} again, as {by or 'somebody'} asked"
    reason = Reason.ROLLED_BACK_BY_HAND.value
    return old.model_copy(update={"revision": revision, "reason": reason, "message": message, "decided_at": now})


def history_with(history: Iterable[Json], replaced: Json | None, in_force: int) -> list[Json]:
    """Plans that were in force before revision `in_force`, newest first; `replaced` is the last of them."""
    plans = [*history, *([replaced] if replaced and replaced.get("revision") else [])]
    known = {revision: {**plan, "revision": revision} for plan in plans for revision in [bounded(plan["revision"])]}
    known.pop(in_force, None)
    by_age = sorted(known, key=lambda revision: (in_force - revision) % MAX_REVISION)
    return [known[revision] for revision in by_age[:HISTORY]]
