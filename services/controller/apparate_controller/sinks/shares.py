"""The controller's share of a status as plain data: what it is, and what of it is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apparate.contract.conditions import CONTROLLER, ConditionType
from apparate.contract.status import bounded
from apparate.service.kube import Json

TYPES = frozenset(str(kind) for kind in ConditionType if kind.writer == CONTROLLER)
WHOLE = ("plan", "history", "observed", "delivery")
KEYS = {"history": "revision", "ramps": "ramp", "conditions": "type"}


def share_in(thing: Mapping[str, Any]) -> Json:
    """The controller's share of an object's status."""
    status = thing.get("status") or {}
    conditions = [one for one in status.get("conditions", ()) if one.get("type") in TYPES]
    share = {name: status[name] for name in WHOLE if status.get(name)}
    return share | ({"conditions": conditions} if conditions else {})


def with_bounded_revisions(thing: Json) -> Json:
    """The object with its revisions as they are read, so that none is written again that the API server refuses."""
    status = thing.get("status") or {}
    shares: Json = {name: _bounded(status[name]) for name in ("plan", "delivery") if status.get(name)}
    if status.get("history"):
        shares["history"] = [_bounded(one) for one in status["history"]]
    return {**thing, "status": {**status, **shares}} if shares else thing


def _bounded(part: Json) -> Json:
    return {**part, "revision": bounded(part["revision"])} if "revision" in part else part


def in_order(value: Any, name: str = "") -> Any:
    """The same data with lists that are maps in the order of their keys, so that equal shares compare equal."""
    if isinstance(value, Mapping):
        return {key: in_order(part, key) for key, part in value.items()}
    if isinstance(value, list):
        parts = [in_order(part) for part in value]
        return sorted(parts, key=lambda part: part.get(KEYS[name], "")) if name in KEYS else parts
    return value
