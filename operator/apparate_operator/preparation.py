"""What to do about the preparation of a model: which Job to make or remove, and how far it is. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from apparate.catalog import InvalidCatalog
from apparate.contract.conditions import Reason, rfc3339
from apparate.contract.resource import EarlyExitModel
from apparate_operator.kinds import ATTEMPT, JOB, Json, Kind
from apparate_operator.manifests.common import Environment
from apparate_operator.manifests.prepare import prepare_job, template_digest
from apparate_operator.observed import Attempt, Observed, Published, annotation
from apparate_operator.reasons import Problem, no_pods, short, worst

AGAIN_S = (30.0, 600.0)  # first and longest pause before a failed preparation is tried again
POD_WITHIN_S = 10.0  # a Job without a pod for so long is looked into
NO_POD_AGAIN_S = 30.0
CATALOG_S = 30.0  # a finished Job whose catalog has not come by then has lost it
STAGES = {
    "fetching": "sources are fetched",
    "sites": "sites are looked for",
    "features": "the model runs over the bootstrap data",
    "training": "ramps are trained",
    "choosing": "ramps are chosen",
    "latencies": "latencies are measured",
    "storing": "the prepared model is stored",
}
_STEPS = {
    "DeadlineExceeded": "raise spec.prepare.activeDeadlineSeconds",
    "BackoffLimitExceeded": "see `kubectl logs` of the Job",
}


@dataclass(frozen=True)
class Preparation:
    """Where the preparation of the wanted revision is."""

    done: bool
    reason: str
    message: str
    job: Json | None = None
    """A Job to make."""
    deletions: tuple[tuple[Kind, str], ...] = ()
    again_s: float | None = None
    """Look again after so long, though nothing may change meanwhile."""


def prepare(
    model: EarlyExitModel, observed: Observed, environment: Environment, wanted: str, now: datetime
) -> Preparation:
    """The preparation of revision `wanted`, and what is next for it."""
    others = tuple((JOB, one.name) for one in observed.attempts if one.revision != wanted)
    published = observed.catalog_of(wanted)
    if published is not None and published.packed:
        return _published(published, others)
    attempts = [one for one in observed.attempts if one.revision == wanted]
    if not attempts:
        return replace(_new(model, observed, environment, wanted, 1), deletions=others)
    latest = attempts[-1]
    older = others + tuple((JOB, one.name) for one in attempts[:-1])
    if latest.template != template_digest(model, environment, wanted) and not latest.complete:
        found = _new(model, observed, environment, wanted, latest.number + 1)
        return replace(found, deletions=(*older, (JOB, latest.name)))
    wait_s = _wait_s(latest, now)
    if wait_s is not None and wait_s <= 0:
        found = _new(model, observed, environment, wanted, latest.number + 1)
        return replace(found, deletions=(*older, (JOB, latest.name)))
    reason, message = _where(latest, observed, published, now)
    if latest in observed.without_pods():
        wait_s = NO_POD_AGAIN_S if latest.name in observed.no_pods else max(1.0, POD_WITHIN_S - latest.waits_s(now))
    return Preparation(False, reason, message, deletions=older, again_s=wait_s)


def _published(published: Published, others: tuple[tuple[Kind, str], ...]) -> Preparation:
    try:
        catalog = published.catalog()
    except InvalidCatalog as error:
        text = (
            f"ConfigMap {published.config_map} is not a catalog: {short(error)}; delete it to prepare the model again"
        )
        return Preparation(False, Reason.CATALOG_INVALID, text, deletions=others)
    text = f"{catalog.ramps} ramps, catalog {catalog.digest[:12]}, revision {published.revision}"
    return Preparation(True, Reason.PREPARED, text, deletions=others)


def _new(model: EarlyExitModel, observed: Observed, environment: Environment, wanted: str, number: int) -> Preparation:
    keep = tuple(one for one in (observed.active,) if one and one != wanted)
    job = prepare_job(model, environment, revision=wanted, attempt=number, keep=keep)
    again = f", attempt {number}" if number > 1 else ""
    return Preparation(False, Reason.PREPARING, f"Job {job['metadata']['name']} starts{again}", job=job)


def _wait_s(latest: Attempt, now: datetime) -> float | None:
    """How long until the next attempt is due; None while this one runs."""
    if latest.failed is None and not latest.complete:
        return None
    return (_moment(latest.finished_at, now) + timedelta(seconds=_pause_s(latest)) - now).total_seconds()


def _pause_s(latest: Attempt) -> float:
    first, longest = AGAIN_S
    return CATALOG_S if latest.complete else min(longest, first * 2.0 ** (min(latest.number, 10) - 1))


def _where(latest: Attempt, observed: Observed, published: Published | None, now: datetime) -> tuple[str, str]:
    pods = [pod for pod in observed.preparing if annotation(pod, ATTEMPT) == str(latest.number)]
    problem = _of_preparation(worst(pods))
    if latest.failed is not None:
        return _failed(latest, problem, now)
    if latest.complete:
        return Reason.PREPARING, f"Job {latest.name} is complete; its catalog is on its way"
    if problem is not None:
        return problem.reason, problem.message
    if published is not None and published.progress:
        return Reason.PREPARING, f"Job {latest.name}: {_progress(published.progress)}"
    if pods:
        return Reason.PREPARING, f"Job {latest.name} runs"
    return no_pods(observed.no_pods.get(latest.name, "")) or (
        Reason.PREPARING,
        f"Job {latest.name} has no pod yet; if that stays so see `kubectl describe job`",
    )


def _failed(latest: Attempt, problem: Problem | None, now: datetime) -> tuple[str, str]:
    due = rfc3339(_moment(latest.finished_at, now) + timedelta(seconds=_pause_s(latest)))
    again = f"tried again at {due}, or at once when the spec changes"
    if problem is not None:
        return problem.reason, f"{problem.message}; {again}"
    failed = latest.failed or {}
    step = _STEPS.get(str(failed.get("reason")), "see `kubectl describe job`")
    return (
        Reason.PREPARE_FAILED,
        f"Job {latest.name} failed: {short(failed.get('message', 'no reason given'))}; {step}; {again}",
    )


def _of_preparation(problem: Problem | None) -> Problem | None:
    """Words that are meant for workers, in those for a preparation."""
    if problem is None:
        return None
    if problem.reason in (Reason.MODEL_LOAD_FAILED, Reason.CRASH_LOOP):
        return replace(problem, reason=str(Reason.PREPARE_FAILED))
    return problem


def _progress(text: str) -> str:
    try:
        found = json.loads(text)
        stage, share = str(found["stage"]), float(found["share"])
    except (ValueError, KeyError, TypeError):
        return "runs"
    return f"{STAGES.get(stage, stage)}, {share:.0%}"


def _moment(text: str, otherwise: datetime) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return otherwise
