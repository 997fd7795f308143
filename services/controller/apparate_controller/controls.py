"""What people may ask of a model in local mode: pause, resume, roll back. On Kubernetes they write to the object."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, HTTPException, Request
from pydantic import BaseModel, Field

from apparate.contract.resource import PlanStatus
from apparate_controller.app import NOT_FOUND, NOT_READY, Name, Namespace, find_model
from apparate_controller.errors import PlanRefused, PlanUnknown
from apparate_controller.views import Error

router = APIRouter()
MODEL = "/v1/models/{namespace}/{name}"


class Paused(BaseModel):
    """Whether adaptation stands still."""

    paused: bool = Field(description="Plans stay as they are; guards still close exits.")


class Rollback(BaseModel):
    """A plan that is wanted again."""

    revision: int = Field(ge=1, description="Of the plan, as the history has it.")


@router.put(f"{MODEL}/paused", responses=NOT_FOUND)
async def pause(request: Request, namespace: Namespace, name: Name, wanted: Annotated[Paused, Body()]) -> Paused:
    """Have adaptation stop, or go on, until the controller ends; the document says what holds after that."""
    await find_model(request, namespace, name).pause(wanted.paused)
    return wanted


@router.post(
    f"{MODEL}/rollback",
    responses={**NOT_FOUND, **NOT_READY, 409: {"model": Error, "description": "That plan cannot be had again."}},
)
async def roll_back(
    request: Request, namespace: Namespace, name: Name, wanted: Annotated[Rollback, Body()]
) -> PlanStatus:
    """Put an earlier plan in force under a new revision. Adaptation goes on from it, unless it is paused."""
    model = find_model(request, namespace, name)
    if model.loop is None:
        raise HTTPException(503, f"{namespace}/{name} is not ready: {model.problem}")
    try:
        return await model.loop.roll_back(wanted.revision)
    except (PlanRefused, PlanUnknown) as error:
        raise HTTPException(409, str(error)) from None
