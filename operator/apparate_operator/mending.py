"""An object of ours that the API will not let us apply because of what somebody made of it: how it is brought back.

First what others wrote into it is taken back: their fields become ours, and applying drops what we do not ask for.
Nothing is deleted by that: a Service keeps its address, a Deployment its pods. What still cannot be applied has another
value in a field that may never change (a selector, a roleRef, an immutable Secret): it is deleted and made anew, where
nothing is lost by it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from apparate.contract.conditions import OPERATOR, rfc3339
from apparate.service.kube import KubeError
from apparate.service.telemetry import get_logger
from apparate_operator.cluster import Cluster
from apparate_operator.conditions import Told
from apparate_operator.kinds import (
    AUTOSCALER,
    BINDING,
    BUDGET,
    DEPLOYMENT,
    HANDOVER,
    POD_MONITOR,
    ROLE,
    SCALED_OBJECT,
    SECRET,
    SERVICE,
    Json,
    Kind,
)
from apparate_operator.lifecycle import Apply

INVALID = 422
AGAIN_S = 600.0  # one object is mended once in so long: whoever changes it back each time must be found, not fought
MADE_ANEW = frozenset({SERVICE, SECRET, ROLE, BINDING, BUDGET, AUTOSCALER, POD_MONITOR, DEPLOYMENT})
"""Deleted when nothing else helps; a Deployment only with a selector that is not ours, so that none of its pods is.
Never a claim (it holds prepared models) or a Job (it is replaced by its next attempt); an account has no fields that
can be refused, and its pods' tokens would die with it; of a ScaledObject KEDA would scale the workers."""
MENDED = MADE_ANEW | {SCALED_OBJECT}
Place = tuple[str, Kind, str]
log = get_logger(__name__)


class Mender:
    """Remembers what was mended lately, so that it never becomes a loop."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._mended: dict[Place, float] = {}

    async def mend(self, one: Apply, uid: str, error: KubeError) -> tuple[Json, Told] | None:
        """Apply what was refused with `error`; the object and what to say. Raises KubeError.

        None when the present object is not what is wrong, may not be touched, or was mended lately.
        """
        place, namespace = (uid, one.kind, one.name), one.body["metadata"]["namespace"]
        if error.status != INVALID or one.kind not in MENDED or self.lately(place):
            return None
        live = await self._cluster.get(one.kind, namespace, one.name)
        if live is None or _is_anothers(live, uid) or not await self._cluster.would_take(one):
            return None
        what, said = f"{one.kind.name} {one.name}", str(error).partition(": ")[2] or str(error)
        entries = taken_over(live["metadata"].get("managedFields") or (), one.kind.api)
        if entries is not None:
            await self._cluster.set_managers(one, live, entries)
            self._mended[place] = time.monotonic()
            try:
                text = f"{what} could not be applied over changes that others had made, which were taken back: {said}"
                return await self._cluster.apply(one), Told("Warning", "Mended", text[:1000])
            except KubeError as still:
                if still.status != INVALID:
                    raise
        if not may_be_made_anew(one, live):
            return None
        self._mended[place] = time.monotonic()
        await self._cluster.delete(one.kind, namespace, one.name, live["metadata"]["uid"])
        text = f"{what} could not be changed to what it has to be and was deleted and made anew: {said}"
        return await self._cluster.apply(one), Told("Warning", "Recreated", text[:1000])

    def lately(self, place: Place) -> bool:
        """Whether an object was mended so lately that it is not done again."""
        return time.monotonic() - self._mended.get(place, -AGAIN_S) < AGAIN_S

    def forget(self, uid: str) -> None:
        """A model is gone."""
        for place in [one for one in self._mended if one[0] == uid]:
            del self._mended[place]


def may_be_made_anew(one: Apply, live: Mapping[str, Any]) -> bool:
    """Whether nothing is lost when the present object is deleted; a policy may refuse any change of it just as well."""
    if one.kind is DEPLOYMENT:
        return bool(live["spec"]["selector"] != one.body["spec"]["selector"])
    return one.kind in MADE_ANEW


def _is_anothers(live: Json, uid: str) -> bool:
    owners = live["metadata"].get("ownerReferences") or ()
    return any(ref.get("controller") and ref.get("uid") != uid for ref in owners)


def taken_over(entries: Iterable[Mapping[str, Any]], api: str) -> list[Json] | None:
    """managedFields with everything outside metadata and status as ours; None when all of it is ours already.

    What came through a subresource stays: an autoscaler's number of workers. So does what is held for it.
    """
    ours: Json = {"manager": OPERATOR, "operation": "Apply", "apiVersion": api, "fieldsType": "FieldsV1"}
    fields: Json = {}
    kept: list[Json] = []
    taken = False
    for entry in map(dict, entries):
        theirs = entry.get("fieldsV1") or {}
        if entry.get("subresource") or entry.get("apiVersion") != api or entry.get("manager") == HANDOVER:
            kept.append(entry)
        elif entry.get("manager") == OPERATOR and entry.get("operation") == "Apply":
            fields = _joined(fields, theirs)
        else:
            about = {name: part for name, part in theirs.items() if name in ("f:metadata", "f:status")}
            rest = {name: part for name, part in theirs.items() if name not in about}
            fields, taken = _joined(fields, rest), taken or bool(rest)
            kept += [entry | {"fieldsV1": about}] if about else []
    return [*kept, ours | {"time": rfc3339(datetime.now(UTC)), "fieldsV1": fields}] if taken else None


def _joined(a: Mapping[str, Any], b: Mapping[str, Any]) -> Json:
    return {**a} | {name: _joined(a.get(name) or {}, part) for name, part in b.items()}
