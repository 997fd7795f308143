"""What belongs to one model, read from the store: the input of decisions."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

from apparate.catalog import InvalidCatalog, RampCatalog
from apparate.contract.labels import COMPONENT, PREPARE, REVISION, WORKER
from apparate_operator.kinds import ATTEMPT, CONFIG_MAP, DEPLOYMENT, JOB, POD, TEMPLATE, Json, Kind

Refs = Mapping[tuple[Kind, str], Json]


@dataclass(frozen=True)
class Published:
    """A catalog that a preparation published, or how far it is."""

    revision: str
    config_map: str
    packed: bytes = b""
    """The catalog's JSON, compressed; empty while the preparation runs."""
    progress: str = ""

    def catalog(self) -> RampCatalog:
        """The catalog. Raises InvalidCatalog."""
        return unpack(self.packed)


@lru_cache(maxsize=64)
def unpack(packed: bytes) -> RampCatalog:
    """A catalog from its compressed JSON. Raises InvalidCatalog."""
    try:
        return RampCatalog.from_json(json.loads(zlib.decompress(packed)))
    except (ValueError, RecursionError, zlib.error) as error:
        raise InvalidCatalog(str(error)) from None


@dataclass(frozen=True)
class Attempt:
    """One Job of a revision."""

    name: str
    revision: str
    number: int
    template: str
    failed: Json | None
    """Its condition Failed."""
    complete: bool
    finished_at: str
    started_at: str = ""
    """When the Job controller took it up."""

    def waits_s(self, now: datetime) -> float:
        """For how many seconds it could have had a pod."""
        return (now - datetime.fromisoformat(self.started_at)).total_seconds() if self.started_at else 0.0


@dataclass(frozen=True)
class Observed:
    """Everything of one model that decisions depend on."""

    refs: Refs
    attempts: tuple[Attempt, ...] = ()
    deployment: Json | None = None
    workers: tuple[Json, ...] = ()
    preparing: tuple[Json, ...] = ()
    """Pods of prepare Jobs."""
    published: tuple[Published, ...] = ()
    no_pods: Mapping[str, str] = field(default_factory=dict)
    """By Job that should have a pod and has none: what the cluster says of that, empty when it says nothing."""

    def without_pods(self) -> tuple[Attempt, ...]:
        """Jobs that run and have no pod."""
        have = {annotation(pod, ATTEMPT) for pod in self.preparing}
        return tuple(
            one for one in self.attempts if not one.complete and one.failed is None and str(one.number) not in have
        )

    @property
    def active(self) -> str:
        """The revision that the Deployment serves; empty without one."""
        return annotation(self.deployment, REVISION) if self.deployment is not None else ""

    def catalog_of(self, revision: str) -> Published | None:
        """What was published of a revision."""
        return next((one for one in self.published if one.revision == revision), None)


def observe(refs: Refs) -> Observed:
    """What the store knows of one model, sorted out."""
    of: dict[Kind, list[Json]] = {}
    for (kind, _), body in sorted(refs.items(), key=lambda one: one[0][1]):
        of.setdefault(kind, []).append(body)
    return Observed(
        refs=refs,
        attempts=tuple(sorted((_attempt(job) for job in of.get(JOB, ())), key=lambda one: one.number)),
        deployment=next(iter(of.get(DEPLOYMENT, ())), None),
        workers=tuple(pod for pod in of.get(POD, ()) if component(pod) == WORKER),
        preparing=tuple(pod for pod in of.get(POD, ()) if component(pod) == PREPARE),
        published=tuple(_published(one) for one in of.get(CONFIG_MAP, ()) if annotation(one, REVISION)),
    )


def _attempt(job: Json) -> Attempt:
    conditions = {c["type"]: c for c in job["status"].get("conditions", ()) if c.get("status") == "True"}
    ended = conditions.get("Failed") or conditions.get("Complete") or {}
    number = annotation(job, ATTEMPT)
    return Attempt(
        name=job["metadata"]["name"],
        revision=annotation(job, REVISION),
        number=int(number) if number.isdigit() else 0,
        template=annotation(job, TEMPLATE),
        failed=conditions.get("Failed"),
        complete="Complete" in conditions,
        finished_at=str(ended.get("lastTransitionTime", "")),
        started_at=str(job["status"].get("startTime", "")),
    )


def _published(config_map: Json) -> Published:
    return Published(
        revision=annotation(config_map, REVISION),
        config_map=config_map["metadata"]["name"],
        packed=config_map.get("catalog", b""),
        progress=config_map.get("progress", ""),
    )


def annotation(body: Json, name: str) -> str:
    """An annotation of an object; empty when it has none."""
    return str((body["metadata"].get("annotations") or {}).get(name, ""))


def component(body: Json) -> str:
    """Which component of its model an object belongs to."""
    return str((body["metadata"].get("labels") or {}).get(COMPONENT, ""))
