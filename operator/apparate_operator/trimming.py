"""What is remembered of an object: the few fields that decisions read, so that thousands fit into memory."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Mapping
from typing import Any

from apparate.contract.conditions import OPERATOR
from apparate.contract.labels import COMPONENT, PREFIX, UID_LABEL, labels
from apparate.contract.resource import KIND
from apparate_operator.kinds import CONFIG_MAP, DEPLOYMENT, HANDOVER, JOB, MODEL, POD, Json, Kind
from apparate_operator.manifests.common import digest

OWN_LABELS = tuple(labels("", "", ""))


class Trimmed(dict[str, Any]):
    """What is left of an object."""


def trim(kind: Kind, body: Mapping[str, Any]) -> Trimmed:
    """The part of an object that decisions read; metadata, and what `_PARTS` says of its kind."""
    if isinstance(body, Trimmed):
        return body
    meta = body.get("metadata") or {}
    found: Json = {"metadata": _metadata(kind, meta)}
    if kind is not MODEL:
        found["metadata"]["of"] = belongs_to(meta)
    if kind not in (MODEL, POD):  # pods belong to their ReplicaSet or Job
        found["metadata"]["bonds"] = bonds(meta)
    part = _PARTS.get(kind)
    return Trimmed(found | part(body) if part is not None else found)


def belongs_to(meta: Mapping[str, Any]) -> str:
    """uid of the model that an object belongs to: its owner, as Kubernetes sees it, else what its label says."""
    known = meta.get("of") or next((ref["uid"] for ref in _owners(meta)), "")
    return sys.intern(str(known or (meta.get("labels") or {}).get(UID_LABEL, "")))


def bonds(meta: Mapping[str, Any]) -> str:
    """A hash of what ties an object to its model: our labels, and the owner. Other labels and owners do not count."""
    found = meta.get("labels") or {}
    tied = [[found.get(name) for name in OWN_LABELS], [[ref["uid"], ref["name"]] for ref in _owners(meta)]]
    return sys.intern(digest(tied))


def _owners(meta: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [ref for ref in meta.get("ownerReferences") or () if ref.get("kind") == KIND and ref.get("controller")]


def _metadata(kind: Kind, meta: Mapping[str, Any]) -> Json:
    kept: Json = {
        name: meta[name]
        for name in ("name", "uid", "resourceVersion", "generation", "deletionTimestamp")
        if meta.get(name) is not None
    }
    if meta.get("namespace"):
        kept["namespace"] = sys.intern(meta["namespace"])
    annotations = {sys.intern(k): v for k, v in (meta.get("annotations") or {}).items() if k.startswith(PREFIX)}
    if annotations:
        kept["annotations"] = annotations
    if kind is POD and COMPONENT in (meta.get("labels") or {}):
        kept["labels"] = {COMPONENT: sys.intern(meta["labels"][COMPONENT])}
    if any(map(_by_hand, meta.get("managedFields") or ())):
        kept["touched"] = True
    return kept


def _by_hand(entry: Mapping[str, Any]) -> bool:
    """Whether somebody else's update holds fields outside metadata and status."""
    if entry.get("manager") in (OPERATOR, HANDOVER) or entry.get("operation") != "Update" or entry.get("subresource"):
        return False
    return bool(set(entry.get("fieldsV1") or ()) - {"f:metadata", "f:status"})


def _model(body: Mapping[str, Any]) -> Json:
    return {name: body[name] for name in ("apiVersion", "kind", "spec", "status") if name in body}


def _deployment(body: Mapping[str, Any]) -> Json:
    status = dict(body.get("status") or {})
    status["conditions"] = [one for one in status.get("conditions") or () if one.get("type") == "ReplicaFailure"]
    return {"spec": {"replicas": body["spec"].get("replicas", 1)}, "status": status}


def _job(body: Mapping[str, Any]) -> Json:
    status = body.get("status") or {}
    return {"status": {name: status[name] for name in ("conditions", "startTime") if name in status}}


def _pod(body: Mapping[str, Any]) -> Json:
    status = body.get("status") or {}
    conditions = [c for c in status.get("conditions") or () if c.get("type") in ("PodScheduled", "Ready")]
    containers = [
        {name: one[name] for name in ("name", "ready", "restartCount", "state", "lastState") if name in one}
        for key in ("initContainerStatuses", "containerStatuses")
        for one in status.get(key) or ()
    ]
    kept = {name: status[name] for name in ("phase", "reason", "message") if name in status}
    return {"status": kept | {"conditions": conditions, "containers": containers}}


def _config_map(body: Mapping[str, Any]) -> Json:
    """A catalog has thousands of numbers; packed, a thousand of them are a few megabytes."""
    data = body.get("data") or {}
    kept: Json = {"progress": data["progress.json"]} if "progress.json" in data else {}
    if "catalog.json" in data:
        kept["catalog"] = zlib.compress(data["catalog.json"].encode())
    return kept


_PARTS = {MODEL: _model, DEPLOYMENT: _deployment, JOB: _job, POD: _pod, CONFIG_MAP: _config_map}
