"""What people may ask of a model in local mode: pause, resume, roll back. On Kubernetes they write to the object."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, HTTPException, Request
from pydantic import BaseModel, Field

from apparate.contract.pause import WHO_MAX
from apparate.contract.resource import PlanStatus
from apparate_controller.app import NOT_FOUND, NOT_READY, Name, Namespace, ready_loop
from apparate_controller.errors import PlanRefused, PlanUnknown
from apparate_controller.views import Error

router = APIRouter()
MODEL = "/v1/models/{namespace}/{name}"


By = Field(
    default="",
    max_length=WHO_MAX,
    description="Who or what asks, for the history; it is believed. Empty: the client's address.",
)


class Pausing(BaseModel):
    """Whether adaptation should stand still."""

    paused: bool = Field(description="Plans stay as they are; guards still close exits.")
    by: str = By


class Rollback(BaseModel):
    """A plan that is wanted again."""

    revision: int = Field(ge=1, description="Of the plan, as the history has it.")
    by: str = By


class Paused(BaseModel):
    """What holds now."""

    paused: bool = Field(description="Adaptation stands still.")
    since: str = Field(description="ISO 8601.")
    by: str = Field(description="Who or what asked for it.")


@router.put(f"{MODEL}/paused", responses={**NOT_FOUND, **NOT_READY})
async def pause(request: Request, namespace: Namespace, name: Name, wanted: Annotated[Pausing, Body()]) -> Paused:
    """Have adaptation stop, or go on, until the document says something else than it does now."""
    held = await ready_loop(request, namespace, name).hold(wanted.paused, wanted.by or _client(request))
    return Paused(paused=held.paused, since=held.since, by=held.by)


@router.post(
    f"{MODEL}/rollback",
    responses={**NOT_FOUND, **NOT_READY, 409: {"model": Error, "description": "That plan cannot be had again."}},
)
async def roll_back(
    request: Request, namespace: Namespace, name: Name, wanted: Annotated[Rollback, Body()]
) -> PlanStatus:
    """Put an earlier plan in force under a new revision. Adaptation goes on from it, unless it is paused."""
    loop = ready_loop(request, namespace, name)
    try:
        return await loop.roll_back(wanted.revision, wanted.by or _client(request))
    except (PlanRefused, PlanUnknown) as error:
        raise HTTPException(409, str(error)) from None


def _client(request: Request) -> str:
    return f"a client at {request.client.host}" if request.client is not None else ""
