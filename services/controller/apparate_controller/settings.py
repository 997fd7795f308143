"""The controller's settings, from environment variables with the prefix EEM_CONTROLLER_."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from apparate.service.settings import ServiceSettings


class ControllerSettings(ServiceSettings):
    """Read once in __main__ and passed down."""

    prefix: ClassVar[str] = "EEM_CONTROLLER_"

    redis_url: str = Field(default="redis://127.0.0.1:6379/0", description="Redis with the feedback and plan streams.")
    documents: Annotated[tuple[Path, ...], NoDecode] = Field(
        description="Comma-separated YAML files with the EarlyExitModel documents to adapt.", min_length=1
    )
    host: str = Field(default="127.0.0.1", description="Address that the HTTP API listens on.")
    port: int = Field(default=8070, ge=0, le=65535, description="TCP port of the HTTP API; 0 picks a free one.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Least level logged.")
    name: str = Field(
        default="controller",
        min_length=1,
        max_length=253,
        description="Name of the stream consumer; feedback that another name left unacked is taken over at start.",
    )
    block_s: float = Field(
        default=1.0,
        gt=0,
        le=60,
        description="Longest wait for feedback in one read, in seconds; a dead connection is noticed 2 s after it.",
    )
    niceness: int = Field(
        default=0,
        ge=0,
        le=19,
        description="Lower priority of the process, so that adaptation gives way to serving on the same machine.",
    )
    retry_s: float = Field(
        default=2.0, gt=0, le=3600, description="Time between looks at a model's catalog file, in seconds."
    )
    stuck_s: float = Field(
        default=60.0,
        gt=1,
        le=3600,
        description="A model's loop that has not turned for this long makes /healthz fail, in seconds.",
    )

    @field_validator("documents", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value
