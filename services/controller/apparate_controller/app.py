"""The controller's HTTP API: what each model's window, plan and decisions are, and why."""

from __future__ import annotations

import asyncio
import io
import json
import time
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, FastAPI, HTTPException, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.plan import Plan
from apparate.service.telemetry import METRICS_CONTENT_TYPE, Telemetry
from apparate_controller.intake import Session
from apparate_controller.journal import Noted
from apparate_controller.models import Model, Models

router = APIRouter()


class _View(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Error(_View):
    """Why a request was not answered."""

    detail: str


class Delivery(_View):
    """How far the plan in force has come."""

    revision: int = Field(description="Of the plan in force; 0 before the first.")
    workers: int = Field(description="Live workers.")
    updated_workers: int = Field(description="Live workers that run this revision.")


class Summary(_View):
    """One model in a line."""

    namespace: str
    name: str
    ready: bool = Field(description="Its feedback is read.")
    reason: str = Field(description="Why not, when it is not ready.")
    delivery: Delivery
    records: int = Field(description="Feedback records taken since the model's feedback was first read.")


class ModelList(_View):
    """All models."""

    models: list[Summary]


class Worker(_View):
    """One live worker."""

    name: str
    revision: int = Field(description="Of the plan it runs.")
    in_flight: int = Field(description="Requests that it has accepted and not answered.")
    guarded: bool = Field(description="Its guard has closed the exits.")


class Counts(_View):
    """Feedback since it was first read, over restarts."""

    batches: int
    records: int
    duplicates: int = Field(description="Batches that came again and were dropped.")
    lost: int = Field(description="Batches missing in their worker's numbers.")
    refused: int = Field(description="Entries that could not be used.")
    lag: int = Field(description="Stream entries not yet read.")
    pending: int = Field(description="Stream entries read and not yet acked.")


class DecisionView(_View):
    """One decision."""

    at: str
    reason: str
    message: str
    revision: int | None = Field(description="Of the new plan; null when the plan in force stayed.")
    times: int = Field(description="Decisions with this reason in a row that changed no plan.")
    samples: int
    loss: float
    loss_upper: float
    saving: float
    exit_rate: float


class ModelView(Summary):
    """One model with all that is known of it."""

    catalog: str | None = Field(description="Digest of the catalog in use.")
    plan: PlanStatus = Field(description="The plan in force; revision 0 is the plain model, before the first.")
    window: dict[str, Any] = Field(description="Records in the window, its size, and records ever added.")
    observed: dict[str, Any] = Field(description="What the last decision saw of the plan in force.")
    ramps: list[dict[str, Any]] = Field(description="What each active ramp does on the window.")
    decisions: list[DecisionView] = Field(description="Newest first.")
    feedback: Counts
    workers: list[Worker]


class Health(_View):
    """A probe's answer."""

    status: Literal["ok", "failing"]
    problems: dict[str, str] = Field(description="By model, what is in the way.")


def create_app(models: Models, telemetry: Telemetry, *, stuck_s: float) -> FastAPI:
    """The application; `stuck_s`: a loop that has not turned for so long is stuck."""
    app = FastAPI(
        title="Apparate controller",
        summary="Feedback in, plans out: windows, plans and decisions of every model.",
        version="v1",
    )
    app.state.models, app.state.telemetry, app.state.stuck_s = models, telemetry, stuck_s
    app.include_router(router)
    return app


def _models(request: Request) -> Models:
    found: Models = request.app.state.models
    return found


def _find(request: Request, namespace: str, name: str) -> Model:
    model = _models(request).find(namespace, name)
    if model is None:
        raise HTTPException(404, f"there is no model {namespace}/{name} here")
    return model


Namespace = Annotated[str, Path(max_length=63)]
Name = Annotated[str, Path(max_length=253)]
NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"model": Error, "description": "No such model here."}}
NOT_READY: dict[int | str, dict[str, Any]] = {503: {"model": Error, "description": "The model is not ready."}}


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """Every model that this controller adapts, or is meant to."""
    return ModelList(models=[_summary(model) for model in _models(request).all.values()])


@router.get("/v1/models/{namespace}/{name}", responses=NOT_FOUND)
async def show_model(request: Request, namespace: Namespace, name: Name) -> ModelView:
    """One model's window, plan, last decisions with their reasons, workers and feedback counts."""
    model = _find(request, namespace, name)
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


@router.get(
    "/v1/models/{namespace}/{name}/recording",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}}, **NOT_FOUND, **NOT_READY},
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
    model = _find(request, namespace, name)
    loop = model.loop
    recording = await loop.in_session(lambda session: _recording(session, ramps)) if loop is not None else None
    if loop is None or recording is None:
        raise HTTPException(503, f"{namespace}/{name} is not ready: {model.problem}")
    columns, arrays = recording
    body = await asyncio.to_thread(_npz, loop.catalog, columns, arrays)
    headers = {"content-disposition": f'attachment; filename="{namespace}-{name}.npz"'}
    return Response(body, media_type="application/octet-stream", headers=headers)


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


@router.get("/readyz", responses={503: {"model": Health, "description": "Feedback cannot be read."}})
async def readyz(request: Request, response: Response) -> Health:
    """Whether feedback of every prepared model is read; models that are not prepared yet are only listed."""
    models = _models(request).all.items()
    problems = {key: model.problem for key, model in models if model.problem}
    return _health(problems, any(model.loop is not None and model.loop.problem for _, model in models), response)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Prometheus text exposition."""
    telemetry: Telemetry = request.app.state.telemetry
    return Response(telemetry.render(), media_type=METRICS_CONTENT_TYPE)


def _health(problems: dict[str, str], failing: bool, response: Response) -> Health:
    response.status_code = 503 if failing else 200
    return Health(status="failing" if failing else "ok", problems=problems)


def _summary(model: Model) -> Summary:
    loop, metadata = model.loop, model.document.model.metadata
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
            updated_workers=sum(worker.revision >= revision for worker in workers),
        ),
        records=loop.progress.totals.records if loop is not None else 0,
    )


def _plan(plan: Plan | None, catalog: RampCatalog, noted: list[Noted]) -> PlanStatus:
    if plan is None:
        return PlanStatus(revision=0)
    why = next((one for one in noted if one.revision == plan.revision), None)
    if why is None:
        return PlanStatus.of(plan, catalog.layers)
    return PlanStatus.of(plan, catalog.layers, reason=why.reason.value, message=why.message, decided_at=why.at)


def _decision(noted: Noted) -> DecisionView:
    seen = noted.observed
    return DecisionView(
        at=noted.at,
        reason=noted.reason.value,
        message=noted.message,
        revision=noted.revision,
        times=noted.times,
        samples=seen.samples,
        loss=seen.loss,
        loss_upper=seen.loss_upper,
        saving=seen.saving,
        exit_rate=seen.exit_rate,
    )


def _recording(session: Session, which: str) -> tuple[list[int], dict[str, Any]]:
    columns = list(session.plan.active) if which == "active" else list(range(session.window.ramps))
    return columns, session.window.recording(columns)


def _npz(catalog: RampCatalog, columns: list[int], arrays: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    told: dict[str, Any] = {"ramps": np.array(columns, np.int32), "catalog": np.array(json.dumps(catalog.to_json()))}
    np.savez_compressed(buffer, **arrays, **told)
    return buffer.getvalue()
