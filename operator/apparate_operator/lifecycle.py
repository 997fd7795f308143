"""What is next for one model: what to write, what to delete, what to say. Pure: the same input gives the same step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from apparate.catalog import InvalidCatalog
from apparate.contract.conditions import OPERATOR, ConditionType, Reason
from apparate.contract.resource import Catalog, EarlyExitModel
from apparate.contract.revision import revision
from apparate.contract.serving import Autoscaling
from apparate.contract.status import MAX_RAMPS, CatalogRamp
from apparate_operator.conditions import Told, Verdict, events, prepared, ready, status, workers
from apparate_operator.kinds import (
    APPLIED,
    BY_NAME,
    CONFIG_MAP,
    DEPLOYMENT,
    HANDOVER,
    POD_MONITOR,
    SCALED_OBJECT,
    SECRET,
    Json,
    Kind,
)
from apparate_operator.manifests.access import prepare_access, worker_access
from apparate_operator.manifests.common import Environment
from apparate_operator.manifests.prepare import catalog_name
from apparate_operator.manifests.redis import secret
from apparate_operator.manifests.storage import KEPT_IN, claim, with_storage
from apparate_operator.manifests.traffic import autoscaler, disruption_budget, pod_monitor, service
from apparate_operator.manifests.worker import SCALED_BY, deployment
from apparate_operator.observed import Observed, Published, annotation, unpack
from apparate_operator.preparation import Preparation, prepare


@dataclass(frozen=True)
class Apply:
    """One object to write by server-side apply."""

    kind: Kind
    body: Json
    manager: str = OPERATOR

    @property
    def name(self) -> str:
        """Name of the object."""
        return str(self.body["metadata"]["name"])


@dataclass(frozen=True)
class Step:
    """What is next. Writes come before deletions, and the status last."""

    applies: tuple[Apply, ...]
    deletions: tuple[tuple[Kind, str], ...]
    status: Json
    events: tuple[Told, ...] = ()
    again_s: float | None = None


def next_step(
    model: EarlyExitModel,
    observed: Observed,
    environment: Environment,
    now: datetime,
    *,
    refused: Verdict | None = None,
) -> Step:
    """What a model needs next, from its spec and from what is there.

    `refused` is what the API said when something of this generation was written and refused.
    """
    if model.spec.model.task != "classification":
        return _not_served(model, observed, now)
    wanted = revision(model.spec)
    preparation = prepare(model, observed, environment, wanted, now)
    serves = wanted if preparation.done else _active(model, observed)
    applies = [Apply(BY_NAME[body["kind"]], body) for body in _preparing(model, wanted, preparation)]
    notes = [environment.warning]
    if serves:
        scaling, note = _scaling(model, environment)
        notes.append(note)
        applies += _handover(model, observed, scaling)
        stored = model if serves == wanted else _as_stored(model, observed)
        applies += [Apply(BY_NAME[b["kind"]], b) for b in _serving(stored, environment, serves, scaling)]
    keep = {wanted, serves, observed.active}
    deletions = [one for one in _unwanted(observed, applies) if one[0] is not SECRET or _rolled_over(observed, applies)]
    deletions += preparation.deletions
    deletions += [(CONFIG_MAP, one.config_map) for one in observed.published if one.revision not in keep]
    at_work = workers(observed, f"workers start when the model is prepared: {preparation.message}")
    if note := " ".join(filter(None, notes)):
        at_work = Verdict(at_work.holds, at_work.reason, f"{at_work.message}; {note}")
    verdicts = {
        ConditionType.PREPARED: prepared(preparation),
        ConditionType.WORKERS_READY: at_work,
        ConditionType.READY: ready(prepared(preparation), at_work, bool(serves), refused),
    }
    catalog = _catalog(model, observed.catalog_of(serves), serves)
    return Step(
        tuple(applies),
        tuple(deletions),
        status(model, observed, verdicts, catalog, now),
        events(model, verdicts),
        preparation.again_s,
    )


def _not_served(model: EarlyExitModel, observed: Observed, now: datetime) -> Step:
    text = f"spec.model.task is {model.spec.model.task}, this version serves classification"
    verdict = Verdict(False, Reason.TASK_NOT_SERVED, text)
    verdicts = dict.fromkeys((ConditionType.PREPARED, ConditionType.WORKERS_READY, ConditionType.READY), verdict)
    deletions = tuple((kind, name) for kind, name in observed.refs if kind.pruned)
    return Step((), deletions, status(model, observed, verdicts, None, now), events(model, verdicts))


def _active(model: EarlyExitModel, observed: Observed) -> str:
    """The revision in service: the Deployment's, or when that was deleted the one that the status tells of."""
    if observed.active:
        return observed.active
    told = model.status.catalog.config_map if model.status and model.status.catalog else ""
    return next((one.revision for one in observed.published if one.packed and one.config_map == told), "")


def _as_stored(model: EarlyExitModel, observed: Observed) -> EarlyExitModel:
    """The model with the storage of the revision in service: the one that the spec names now has only newer ones."""
    return with_storage(model, annotation(observed.deployment, KEPT_IN)) if observed.deployment is not None else model


def _preparing(model: EarlyExitModel, wanted: str, preparation: Preparation) -> Iterator[Json]:
    store = claim(model)
    if store is not None:
        yield store
    yield from prepare_access(model, catalog_name(model, wanted))
    if preparation.job is not None:
        yield preparation.job


def _serving(
    model: EarlyExitModel, environment: Environment, serves: str, scaling: Autoscaling | None
) -> Iterator[Json]:
    yield from worker_access(model)
    if (redis := secret(model, environment)) is not None:
        yield redis
    replicas = model.spec.serving.replicas if scaling is None else None
    yield deployment(model, environment, revision=serves, replicas=replicas)
    yield service(model)
    yield disruption_budget(model)
    if scaling is not None:
        yield autoscaler(model, scaling)
    if environment.has(POD_MONITOR) and environment.scrape_interval:
        yield pod_monitor(model, environment)


def _scaling(model: EarlyExitModel, environment: Environment) -> tuple[Autoscaling | None, str]:
    """How the number of workers is set, and what to say when the cluster cannot do what was asked."""
    scaling = model.spec.autoscaling
    if scaling is not None and scaling.kind == "keda" and not environment.has(SCALED_OBJECT):
        return None, "autoscaling.kind is keda and the cluster has no keda.sh API: install KEDA, or set kind to hpa"
    return scaling, ""


def _handover(model: EarlyExitModel, observed: Observed, scaling: Autoscaling | None) -> list[Apply]:
    """Lets the number of workers stay what it is when an autoscaler takes it over.

    A field that its only manager drops falls back to its default, which would be one worker.
    """
    there = observed.deployment
    if scaling is None or there is None or annotation(there, SCALED_BY) != OPERATOR:
        return []
    body: Json = {
        "apiVersion": DEPLOYMENT.api,
        "kind": DEPLOYMENT.name,
        "metadata": {"name": there["metadata"]["name"], "namespace": model.metadata.namespace},
        "spec": {"replicas": there["spec"]["replicas"]},
    }
    return [Apply(DEPLOYMENT, body, HANDOVER)]


def _unwanted(observed: Observed, applies: list[Apply]) -> Iterator[tuple[Kind, str]]:
    wanted = {(one.kind, one.name) for one in applies}
    for kind, name in observed.refs:
        if kind.pruned and (kind, name) not in wanted:
            yield kind, name


def _rolled_over(observed: Observed, applies: list[Apply]) -> bool:
    """Whether every worker is of the newest kind: one of an older kind that starts again needs the Secret it had."""
    there = observed.deployment
    if there is None:
        return True
    wanted = {annotation(one.body, APPLIED) for one in applies if one.kind is DEPLOYMENT and one.manager == OPERATOR}
    status, generation = there["status"], there["metadata"].get("generation", 0)
    if wanted != {annotation(there, APPLIED)} or status.get("observedGeneration", 0) < generation:
        return False
    return bool(status.get("replicas", 0) == status.get("updatedReplicas", 0))


def _catalog(model: EarlyExitModel, published: Published | None, serves: str) -> Catalog | None:
    """status.catalog of the revision in service; as it was, while what was published of it is missing."""
    if not serves:
        return None
    if published is None or not published.packed:
        return model.status.catalog if model.status else None
    try:
        return summary(published.packed, published.config_map, model.spec.budget.ramp_overhead)
    except InvalidCatalog:
        return model.status.catalog if model.status else None


@lru_cache(maxsize=4096)
def summary(packed: bytes, config_map: str, ramp_overhead: float) -> Catalog:
    """What the status says of a catalog."""
    catalog = unpack(packed)
    ramps = tuple(CatalogRamp(ramp=r, layer=layer[:512]) for r, layer in enumerate(catalog.layers[:MAX_RAMPS]))
    most = catalog.max_active_ramps(ramp_overhead)
    return Catalog(digest=catalog.digest, ramps=ramps, max_active_ramps=most, config_map=config_map)
