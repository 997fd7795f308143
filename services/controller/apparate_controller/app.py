"""The controller's HTTP API: what each model's window, plan and decisions are, and why."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, FastAPI, HTTPException, Path, Query, Request, Response

from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.plan import Plan
from apparate.service.telemetry import METRICS_CONTENT_TYPE, Telemetry
from apparate_controller import whatif
from apparate_controller.intake import Session
from apparate_controller.journal import Noted
from apparate_controller.loop import ModelLoop
from apparate_controller.models import Model, ModelSet
from apparate_controller.views import (
    BudgetView,
    CatalogView,
    Counts,
    DecisionView,
    Delivery,
    Error,
    Health,
    LatenciesView,
    ModelList,
    ModelView,
    ObservedView,
    PlanReplays,
    Summary,
    WhatIf,
    Worker,
)
from apparate_controller.web.pages import add_page

router = APIRouter()
MOST_BUDGETS = 16  # in one question; each takes some 50 ms


def create_app(
    models: ModelSet,
    telemetry: Telemetry,
    *,
    stuck_s: float,
    standby: Callable[[], str] = lambda: "",
    refused: Callable[[], dict[str, str]] = dict,
) -> FastAPI:
    """The application; `stuck_s`: a loop that has not turned for so long is stuck.

    standby: why another process adapts the models, empty when this one does. refused: what Kubernetes does not let
    this process do, and why.
    """
    app = FastAPI(
        title="Apparate controller",
        summary="Feedback in, plans out: windows, plans and decisions of every model.",
        version="v1",
        docs_url=None,  # of ours is one that works without the internet
        redoc_url=None,
    )
    app.state.models, app.state.telemetry, app.state.stuck_s, app.state.standby = models, telemetry, stuck_s, standby
    app.state.refused, app.state.tuning = refused, asyncio.Semaphore(1)
    app.include_router(router)
    add_page(app)
    return app


def _models(request: Request) -> ModelSet:
    found: ModelSet = request.app.state.models
    return found


def find_model(request: Request, namespace: str, name: str) -> Model:
    """The model of that name. Raises HTTPException."""
    _must_lead(request)
    model = _models(request).find(namespace, name)
    if model is None:
        raise HTTPException(404, f"there is no model {namespace}/{name} here")
    return model


def _must_lead(request: Request) -> None:
    if standby := request.app.state.standby():
        raise HTTPException(503, standby)


Namespace = Annotated[str, Path(max_length=63)]
Name = Annotated[str, Path(max_length=253)]
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Error, "description": "No such model here."}}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": Error, "description": "The model is not ready."}}
T = TypeVar("T")


def ready_loop(request: Request, namespace: str, name: str) -> ModelLoop:
    """The loop of a model. Raises HTTPException."""
    model = find_model(request, namespace, name)
    if model.loop is None:
        raise _not_ready(model, namespace, name)
    return model.loop


async def in_session(request: Request, namespace: str, name: str, call: Callable[[Session], T]) -> T:
    """What `call` finds in the session of a model, in its own thread. Raises HTTPException, also before it has one."""
    found = await ready_loop(request, namespace, name).in_session(call)
    if found is None:
        raise _not_ready(find_model(request, namespace, name), namespace, name)
    return found


def _not_ready(model: Model, namespace: str, name: str) -> HTTPException:
    return HTTPException(503, f"{namespace}/{name} is not ready: {model.problem}")


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """Every model that this controller adapts, or is meant to."""
    _must_lead(request)
    return ModelList(models=[_summary(model) for model in _models(request).all.values()])


@router.get("/v1/models/{namespace}/{name}", responses=NOT_FOUND)
async def show_model(request: Request, namespace: Namespace, name: Name) -> ModelView:
    """One model's window, plan, last decisions with their reasons, workers and feedback counts."""
    model = find_model(request, namespace, name)
    loop = model.loop
    base = _summary(model).model_dump()
    if loop is None:
        counts = Counts(batches=0, records=0, duplicates=0, lost=0, refused=0, lag=0, pending=0)
        return ModelView(
            **base,
            catalog=None,
            plan=PlanStatus(revision=0),
            window={},
            observed={},
            ramps=[],
            decisions=[],
            feedback=counts,
            workers=[],
        )
    described = await loop.in_session(lambda session: session.describe()) or {}
    totals = loop.progress.totals
    noted = loop.journal.newest_first()
    return ModelView(
        **base,
        catalog=loop.catalog.digest,
        plan=_plan(loop.plan, loop.catalog, noted),
        window=described.get("window", {}),
        observed=described.get("observed", {}),
        ramps=described.get("ramps", []),
        decisions=[_decision(one) for one in noted],
        feedback=Counts(
            batches=totals.batches,
            records=totals.records,
            duplicates=totals.duplicates,
            lost=totals.lost,
            refused=totals.refused,
            lag=loop.backlog.lag,
            pending=loop.backlog.pending,
        ),
        workers=[Worker(**vars(worker)) for worker in loop.workers],
    )


@router.get("/v1/models/{namespace}/{name}/plans", responses=NOT_FOUND)
async def list_plans(request: Request, namespace: Namespace, name: Name) -> list[PlanStatus]:
    """Plans that were in force before this one, newest first."""
    loop = find_model(request, namespace, name).loop
    return await loop.history() if loop is not None else []


@router.get("/v1/models/{namespace}/{name}/plans/replayed", responses={**NOT_FOUND, **NOT_READY})
async def replay_plans(request: Request, namespace: Namespace, name: Name) -> PlanReplays:
    """What the plan in force and each before it would lose and save on today's window: to roll back to a good one."""
    loop = ready_loop(request, namespace, name)
    earlier = await loop.history()

    def copied(session: Session) -> whatif.Past:
        return whatif.replayable(session, loop.catalog, [PlanStatus.of(session.plan), *earlier])

    past = await in_session(request, namespace, name, copied)
    async with request.app.state.tuning:
        return PlanReplays(plans=await asyncio.to_thread(whatif.replayed, past, loop.catalog))


@router.get(
    "/v1/models/{namespace}/{name}/recording",
    response_class=Response,
    responses={
        200: {"content": {"application/octet-stream": {}}},
        409: {"model": Error, "description": "No ramp reports."},
        **NOT_FOUND,
        **NOT_READY,
    },
)
async def download_recording(
    request: Request,
    namespace: Namespace,
    name: Name,
    ramps: Annotated[
        Literal["active", "all"],
        Query(description="Columns: ramps of the plan in force, or all. Only records on which all of them reported."),
    ] = "active",
) -> Response:
    """The window as an .npz recording: err, top1, final, batch, shadow, the ramps of the columns, and the catalog."""
    catalog = ready_loop(request, namespace, name).catalog
    columns, arrays = await in_session(request, namespace, name, lambda session: _recording(session, ramps))
    if not columns:
        raise HTTPException(
            409, f"{namespace}/{name} has no active ramp, so there is nothing to record: see its decisions"
        )
    body = await asyncio.to_thread(_npz, catalog, columns, arrays)
    headers = {"content-disposition": f'attachment; filename="{namespace}-{name}.npz"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


@router.get("/v1/models/{namespace}/{name}/catalog", responses={**NOT_FOUND, **NOT_READY})
async def show_catalog(request: Request, namespace: Namespace, name: Name) -> CatalogView:
    """Every ramp that there is, with its latencies."""
    catalog = ready_loop(request, namespace, name).catalog
    return CatalogView(
        digest=catalog.digest,
        layers=list(catalog.layers),
        batch_sizes=list(catalog.batch_sizes),
        reach_ms=catalog.reach_ms.tolist(),
        overhead_ms=catalog.overhead_ms.tolist(),
        full_ms=catalog.full_ms.tolist(),
    )


@router.get("/v1/models/{namespace}/{name}/latencies", responses={**NOT_FOUND, **NOT_READY})
async def show_latencies(request: Request, namespace: Namespace, name: Name) -> LatenciesView:
    """How long the newest answers took, and when the plain model would have given them."""
    return LatenciesView.model_validate(await ready_loop(request, namespace, name).latencies())


@router.get("/v1/models/{namespace}/{name}/what-if", responses={**NOT_FOUND, **NOT_READY})
async def what_if(
    request: Request,
    namespace: Namespace,
    name: Name,
    accuracy_loss: Annotated[
        list[Annotated[float, Query(gt=0.0, le=0.5)]],
        Query(alias="accuracyLoss", min_length=1, max_length=MOST_BUDGETS, description="Budgets; may be repeated."),
    ],
    ramp_overhead: Annotated[
        float | None,
        Query(
            alias="rampOverhead",
            ge=0.0,
            le=0.5,
            description="Choose the active ramps anew for this overhead budget. Default: those of the plan in force.",
        ),
    ] = None,
    confidence: Annotated[float | None, Query(gt=0.0, lt=1.0, description="Default: the model's.")] = None,
) -> WhatIf:
    """What other budgets would save and lose, tuned on the window. Changes nothing."""
    catalog = ready_loop(request, namespace, name).catalog
    spec = find_model(request, namespace, name).document.model.spec
    question = whatif.Question(tuple(accuracy_loss), ramp_overhead, confidence)
    known = await in_session(request, namespace, name, lambda one: whatif.known(one, catalog, spec, question))
    async with request.app.state.tuning:  # one at a time: a decision must not wait for many
        return await asyncio.to_thread(whatif.answer, known, question)


@router.get("/healthz", responses={503: {"model": Health, "description": "A loop is stuck."}})
async def healthz(request: Request, response: Response) -> Health:
    """Whether every loop turns; one that waits for Redis turns too."""
    limit, at = request.app.state.stuck_s, time.monotonic()
    problems = {
        key: f"its loop has not turned for {at - model.loop.turned_at:.0f} s, allowed are {limit:.0f} s"
        for key, model in _models(request).all.items()
        if model.loop is not None and at - model.loop.turned_at > limit
    }
    return _health(problems, bool(problems), response)


@router.get(
    "/readyz", responses={503: {"model": Health, "description": "Feedback cannot be read, or plans not be written."}}
)
async def readyz(request: Request, response: Response) -> Health:
    """Whether feedback of every prepared model is read, and plans can be published; who has to wait is ready too."""
    refused: dict[str, str] = request.app.state.refused()
    if standby := request.app.state.standby():
        return _health({"": standby, **refused}, bool(refused), response)
    models = _models(request).all.items()
    problems = {key: model.problem for key, model in models if model.problem} | refused
    failing = any(model.loop is not None and model.problem for _, model in models)
    return _health(problems, failing or bool(refused), response)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Prometheus text exposition."""
    telemetry: Telemetry = request.app.state.telemetry
    return Response(telemetry.render(), media_type=METRICS_CONTENT_TYPE)


def _health(problems: dict[str, str], failing: bool, response: Response) -> Health:
    response.status_code = 503 if failing else 200
    return Health(status="failing" if failing else "ok", problems=problems)


def _summary(model: Model) -> Summary:
    loop, metadata, spec = model.loop, model.document.model.metadata, model.document.model.spec
    pause, seen = model.pause, loop.observed if loop is not None else None
    plan = loop.plan if loop is not None else None
    revision = plan.revision if plan is not None else 0
    workers = loop.workers if loop is not None else ()
    return Summary(
        namespace=metadata.namespace,
        name=metadata.name,
        ready=not model.problem,
        reason=model.problem,
        delivery=Delivery(
            revision=revision,
            workers=len(workers),
            updated_workers=sum(worker.revision == revision for worker in workers),
        ),
        records=loop.progress.totals.records if loop is not None else 0,
        paused=pause.paused,
        paused_since=pause.since if pause.paused else "",
        paused_by=pause.by if pause.paused else "",
        guarded=sum(worker.guarded for worker in workers),
        budget=BudgetView(
            accuracy_loss=spec.budget.accuracy_loss,
            ramp_overhead=spec.budget.ramp_overhead,
            confidence=spec.budget.confidence,
        ),
        last=ObservedView(**vars(seen)) if seen is not None and seen.samples else None,
    )


def _plan(plan: Plan | None, catalog: RampCatalog, noted: list[Noted]) -> PlanStatus:
    if plan is None:
        return PlanStatus(revision=0)
    why = next((one for one in noted if one.revision == plan.revision), None)
    if why is None:
        return PlanStatus.of(plan, catalog.layers)
    return PlanStatus.of(plan, catalog.layers, reason=why.reason, message=why.message, decided_at=why.at)


def _decision(noted: Noted) -> DecisionView:
    return DecisionView(
        at=noted.at,
        reason=noted.reason,
        message=noted.message,
        revision=noted.revision,
        times=noted.times,
        by=noted.by,
        **vars(noted.observed),
    )


def _recording(session: Session, which: str) -> tuple[list[int], dict[str, Any]]:
    columns = list(session.plan.active) if which == "active" else list(range(session.window.ramps))
    return columns, session.window.recording(columns)


def _npz(catalog: RampCatalog, columns: list[int], arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    told: dict[str, Any] = {"ramps": np.array(columns, np.int32), "catalog": np.array(json.dumps(catalog.to_json()))}
    np.savez_compressed(buffer, **arrays, **told)
    return buffer.getvalue()
