"""What the cluster was last seen to have: filled by watches, by lists and by the answers to our own writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from apparate.service.kube import version_of
from apparate_operator.conditions import OWN
from apparate_operator.kinds import MODEL, Json, Kind
from apparate_operator.trimming import belongs_to, trim

Key = tuple[str, str]
"""Namespace and name of an EarlyExitModel."""


@dataclass
class Store:
    """Models by key, and what belongs to each by the model's uid. For one event loop: not thread-safe."""

    models: dict[Key, Json] = field(default_factory=dict)
    children: dict[str, dict[tuple[Kind, str], Json]] = field(default_factory=dict)
    _keys: dict[str, Key] = field(default_factory=dict)
    _gone: dict[tuple[Kind, str, str], int] | None = None

    def put(self, kind: Kind, body: Mapping[str, Any]) -> Key | None:
        """Remember an object unless a newer one is known; the model to look at when this says something new."""
        fresh = trim(kind, body)
        meta = fresh["metadata"]
        if kind is MODEL:
            key = (meta["namespace"], meta["name"])
            old = self.models.get(key)
            if old is not None and version_of(old) >= version_of(fresh):
                return None
            self.models[key] = fresh
            self._keys[meta["uid"]] = key
            return key if old is None or _asks_differently(old, fresh) else None
        uid = belongs_to(meta)
        if not uid:
            return self._lost(kind, meta)
        known = self.children.setdefault(uid, {})
        old = known.get((kind, meta["name"]))
        if old is not None and version_of(old) >= version_of(fresh):
            return None
        known[kind, meta["name"]] = fresh
        return self._keys.get(uid)

    def _lost(self, kind: Kind, meta: Mapping[str, Any]) -> Key | None:
        """Somebody took owner and label from an object: it belongs to nobody now; the model that had it."""
        for uid, known in self.children.items():
            old = known.get((kind, meta["name"]))
            if old is not None and old["metadata"]["uid"] == meta["uid"]:
                del known[kind, meta["name"]]
                return self._keys.get(uid)
        return None

    def drop(self, kind: Kind, body: Mapping[str, Any]) -> Key | None:
        """Forget a deleted object; the model to look at."""
        meta = body["metadata"]
        if self._gone is not None:
            self._gone[kind, meta.get("namespace", ""), meta["name"]] = version_of(body)
        if kind is MODEL:
            key = (meta["namespace"], meta["name"])
            if self.models.get(key, {}).get("metadata", {}).get("uid") == meta["uid"]:
                del self.models[key]
            self._keys.pop(meta["uid"], None)
            return key  # what belonged to it is there until its own end, or for good when it was orphaned
        uid = belongs_to(meta)
        if not uid:
            return self._lost(kind, meta)
        known = self.children.get(uid, {})
        old = known.get((kind, meta["name"]))
        if old is not None and old["metadata"]["uid"] == meta["uid"]:
            del known[kind, meta["name"]]
            if not known:
                self.children.pop(uid, None)
        return self._keys.get(uid)

    def of(self, uid: str) -> Mapping[tuple[Kind, str], Json]:
        """Everything that belongs to a model."""
        return self.children.get(uid, {})

    def behind(self, kind: Kind, bodies: Iterable[Mapping[str, Any]]) -> list[str]:
        """Namespace/name of listed objects that are newer than what is known of them, or not known at all."""
        late = []
        for body in bodies:
            meta = body["metadata"]
            if kind is MODEL:
                known = self.models.get((meta["namespace"], meta["name"]))
            else:
                known = self.children.get(belongs_to(meta), {}).get((kind, meta["name"]))
            place = (kind, meta.get("namespace", ""), meta["name"])
            gone = self._gone is not None and self._gone.get(place, -1) >= version_of(body)
            if not gone and (known is None or version_of(known) < version_of(body)):
                late.append(f"{meta.get('namespace', '')}/{meta['name']}")
        return late

    def begin_listing(self) -> None:
        """From now on remember what is deleted, so that a list taken meanwhile does not bring it back."""
        self._gone = {}

    def end_listing(self) -> None:
        """No list is under way any more."""
        self._gone = None

    def replace(self, kind: Kind, bodies: Iterable[Mapping[str, Any]], listed: int) -> set[Key]:
        """Take a whole list of a kind, as of resource version `listed`; the models to look at.

        What is known and not in the list is gone, unless it is newer than the list. The watch should have told of
        every difference already.
        """
        seen: set[tuple[str, str]] = set()
        changed: set[Key] = set()
        for body in bodies:
            meta = body["metadata"]
            seen.add((meta.get("namespace", ""), meta["name"]))
            if self._gone is not None and self._gone.get(
                (kind, meta.get("namespace", ""), meta["name"]), -1
            ) >= version_of(body):
                continue
            if (key := self.put(kind, body)) is not None:
                changed.add(key)
        for known in self._known(kind):
            meta = known["metadata"]
            if (meta.get("namespace", ""), meta["name"]) not in seen and version_of(known) <= listed:
                key = self.drop(kind, known)
                if key is not None:
                    changed.add(key)
        return changed

    def _known(self, kind: Kind) -> list[Json]:
        if kind is MODEL:
            return list(self.models.values())
        return [one for known in self.children.values() for (of, _), one in known.items() if of is kind]


def _asks_differently(old: Json, fresh: Json) -> bool:
    """Whether anything but the controller's share of the status changed: that part is not the operator's business."""
    if old["metadata"]["uid"] != fresh["metadata"]["uid"]:
        return True
    a, b = dict(old["metadata"]), dict(fresh["metadata"])
    a.pop("resourceVersion", None), b.pop("resourceVersion", None)
    return a != b or own_share(old.get("status") or {}) != own_share(fresh.get("status") or {})


OWN_FIELDS = ("observedGeneration", "replicas", "readyReplicas", "selector", "catalog")


def own_share(status: Mapping[str, Any]) -> Json:
    """The operator's share of a status."""
    share: Json = {name: status[name] for name in OWN_FIELDS if name in status}
    conditions = [c for c in status.get("conditions") or () if c.get("type") in OWN]
    if conditions:
        share["conditions"] = sorted(conditions, key=lambda c: OWN.index(c["type"]))
    return share
