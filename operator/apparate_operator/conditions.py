"""The operator's share of a status: conditions with the pods' own reasons, counters, and what is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from apparate.contract.conditions import OPERATOR, ConditionType, Reason, condition, with_condition
from apparate.contract.labels import REVISION, WORKER
from apparate.contract.resource import Catalog, Condition, EarlyExitModel
from apparate_operator.kinds import Json
from apparate_operator.manifests.common import selector
from apparate_operator.observed import Observed, annotation
from apparate_operator.preparation import Preparation
from apparate_operator.reasons import Problem, lacking, no_pods, worst

OWN = tuple(kind for kind in ConditionType if kind.writer == OPERATOR)
FINE = {Reason.READY, Reason.PREPARED, Reason.WORKERS_READY, Reason.PREPARING, Reason.STARTING, Reason.SCALED_TO_ZERO}
"""Reasons that are no cause for a warning."""


@dataclass(frozen=True)
class Verdict:
    """One condition before it has a time."""

    holds: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Told:
    """A Kubernetes Event to write: something that people care about has changed."""

    kind: str
    """Normal or Warning."""
    reason: str
    message: str


def workers(observed: Observed, waiting_for: str) -> Verdict:
    """Whether as many workers serve as are asked for."""
    deployment = observed.deployment
    if deployment is None:
        return Verdict(False, Reason.STARTING, waiting_for)
    wanted, status = int(deployment["spec"]["replicas"]), deployment["status"]
    ready, updated = int(status.get("readyReplicas", 0)), int(status.get("updatedReplicas", 0))
    if wanted == 0 and ready == 0:
        return Verdict(True, Reason.SCALED_TO_ZERO, "no workers are asked for: spec.serving.replicas is 0")
    told = f"{ready} of {wanted} workers ready"
    if updated < wanted and ready:
        told += f", {updated} of the newest kind"
    blocked = _blocked(observed) if updated < int(status.get("replicas", 0)) else ""  # else pods are only added
    if blocked and (ready < wanted or updated < wanted):
        return Verdict(ready >= wanted, Reason.ROLLOUT_BLOCKED, f"{told}; {blocked}")
    refused = _refused(status.get("conditions", ()))
    if ready >= wanted:  # of whatever kind: they serve
        stuck = _stuck(observed) if updated < int(status.get("replicas", 0)) else None
        if stuck is not None:
            return Verdict(True, Reason.ROLLOUT_BLOCKED, f"{told}; new workers do not start: {stuck.message}")
        why = f"; {refused[1]}" if refused is not None and updated < wanted else ""
        return Verdict(True, Reason.WORKERS_READY, f"{told}{why}")
    problem = worst(observed.workers)
    if problem is not None:
        return Verdict(False, problem.reason, f"{told}; {problem.message}")
    if refused is not None:
        return Verdict(False, refused[0], f"{told}; {refused[1]}")
    return Verdict(False, Reason.STARTING, told)


def _blocked(observed: Observed) -> str:
    """Why new pods cannot take the place of old ones, when they lack something that old ones hold; else empty."""
    active = observed.active
    olds = [pod for pod in observed.workers if _ready(pod)]
    news = [pod for pod in observed.workers if not _ready(pod) and annotation(pod, REVISION) == active]
    problem = worst(news)
    resource = lacking(problem.message) if problem is not None else ""
    if not resource or not olds or problem is None or problem.reason != Reason.UNSCHEDULABLE:
        return ""
    return (
        f"the rollout waits for {resource}, which running workers hold: {problem.message}; "
        "or set spec.serving.rollout.strategy to recreate"
    )


def _stuck(observed: Observed) -> Problem | None:
    """What keeps new pods of a rollout from starting, while old ones serve on."""
    return worst(pod for pod in observed.workers if not _ready(pod) and pod["status"].get("phase") != "Failed")


def _ready(pod: Json) -> bool:
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in pod["status"].get("conditions", ()))


def _refused(conditions: Iterable[Json]) -> tuple[str, str] | None:
    """Why the cluster makes no pods at all."""
    failing = (c for c in conditions if c.get("type") == "ReplicaFailure" and c.get("status") == "True")
    return next((no_pods(str(one.get("message", ""))) for one in failing), None)


def ready(prepared: Verdict, serving: Verdict, serves: bool, refused: Verdict | None) -> Verdict:
    """Whether the model serves; an older revision that goes on serving while a new one is prepared does."""
    if refused is not None:
        return refused
    if not serves:
        return Verdict(False, prepared.reason, prepared.message)
    if not serving.holds:
        return Verdict(False, serving.reason, serving.message)
    if serving.reason == Reason.SCALED_TO_ZERO:
        return Verdict(False, serving.reason, serving.message)
    if not prepared.holds:
        return Verdict(True, Reason.READY, f"{serving.message}; a new revision is not prepared: {prepared.message}")
    reason = serving.reason if serving.reason != Reason.WORKERS_READY else Reason.READY
    return Verdict(True, reason, serving.message)


def status(
    model: EarlyExitModel,
    observed: Observed,
    verdicts: dict[ConditionType, Verdict],
    catalog: Catalog | None,
    now: datetime,
) -> Json:
    """The operator's whole share of the status, as the API wants it."""
    before: tuple[Condition, ...] = model.status.conditions if model.status else ()
    for kind, verdict in verdicts.items():
        fresh = condition(
            kind, verdict.holds, verdict.reason, verdict.message, now=now, generation=model.metadata.generation
        )
        before = with_condition(before, fresh, now)
    counts = observed.deployment["status"] if observed.deployment is not None else {}
    share: Json = {
        "observedGeneration": model.metadata.generation,
        "replicas": int(counts.get("replicas", 0)),
        "readyReplicas": int(counts.get("readyReplicas", 0)),
        "selector": ",".join(f"{k}={v}" for k, v in sorted(selector(model, WORKER).items())),
        "conditions": [
            one.model_dump(by_alias=True, exclude_none=True, mode="json")
            for kind in OWN
            for one in before
            if one.type == kind
        ],
    }
    if catalog is not None:
        share["catalog"] = catalog.model_dump(by_alias=True, mode="json")
    return share


def events(model: EarlyExitModel, verdicts: dict[ConditionType, Verdict]) -> tuple[Told, ...]:
    """One Event for each reason that is new, but the same words only once."""
    before = {c.type: c for c in model.status.conditions} if model.status else {}
    told: dict[str, Told] = {}
    for kind, verdict in verdicts.items():
        old = before.get(kind)
        if old is not None and old.reason == verdict.reason and (old.status == "True") == verdict.holds:
            continue
        if old is None and verdict.reason == Reason.STARTING:
            continue  # a new model has no workers yet: that is no news
        good = (verdict.holds and verdict.reason != Reason.ROLLOUT_BLOCKED) or verdict.reason in FINE
        level = "Normal" if good else "Warning"
        told.setdefault(str(verdict.reason), Told(level, str(verdict.reason), verdict.message[:1000]))
    return tuple(told.values())


def prepared(found: Preparation) -> Verdict:
    """The condition Prepared."""
    return Verdict(found.done, found.reason, found.message)


def unreadable(body: Json, why: str, now: datetime) -> Json:
    """What changes in the share of a model whose spec this version cannot read though the API server took it."""
    meta, old = body["metadata"], (body.get("status") or {}).get("conditions") or ()
    known = tuple(Condition.model_validate(one) for one in old if one.get("type") in OWN)
    fresh = condition(ConditionType.READY, False, Reason.REJECTED, why, now=now, generation=meta["generation"])
    kept = {one.type: one for one in with_condition(known, fresh, now)}
    dumped = [kept[kind].model_dump(by_alias=True, exclude_none=True, mode="json") for kind in OWN if kind in kept]
    return {"observedGeneration": meta["generation"], "conditions": dumped}
