"""The controller's settings, from environment variables with the prefix EEM_CONTROLLER_."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from apparate.service.settings import COMMA_SEPARATED, ServiceSettings


class ControllerSettings(ServiceSettings):
    """Read once in __main__ and passed down."""

    prefix: ClassVar[str] = "EEM_CONTROLLER_"

    redis_url: str = Field(default="redis://127.0.0.1:6379/0", description="Redis with the feedback and plan streams.")
    documents: Annotated[tuple[Path, ...], *COMMA_SEPARATED] = Field(
        default=(),
        description="Comma-separated YAML files with the EarlyExitModel documents to adapt, in local mode.",
    )
    kubernetes: bool = Field(
        default=False, description="Adapt the EarlyExitModels of a cluster, and publish plans in their status."
    )
    namespaces: Annotated[tuple[str, ...], *COMMA_SEPARATED] = Field(
        default=(), description="Comma-separated namespaces whose EarlyExitModels are adapted; empty: all of them."
    )
    kubeconfig: str = Field(default="", description="Kubeconfig file of the cluster; empty: the pod's own token.")
    lease_namespace: str = Field(
        default="", description="Namespace of the Lease by which one of several controllers leads; empty: no Lease."
    )
    lease_name: str = Field(default="apparate-controller", min_length=1, max_length=253, description="Its name.")
    host: str = Field(default="127.0.0.1", description="Address that the HTTP API listens on.")
    port: int = Field(default=8070, ge=0, le=65535, description="TCP port of the HTTP API; 0 picks a free one.")
    address: str = Field(
        default="",
        max_length=253,
        description="Host name or address at which other controllers reach this one, as a pod its IP: those that wait "
        "for the Lease pass questions about models on to the one that leads. Empty: they answer 503.",
    )
    api_token: str = Field(
        default="",
        max_length=4096,
        pattern="^[!-~]*$",
        repr=False,
        description="Token that the page and the HTTP API want (probes and metrics do not), as `Authorization: Bearer` "
        "or as the password that a browser asks for. Empty: anybody who reaches the port may ask.",
    )
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

    @model_validator(mode="after")
    def _some_models(self) -> ControllerSettings:
        if bool(self.documents) == self.kubernetes:
            raise ValueError("either EEM_CONTROLLER_DOCUMENTS or EEM_CONTROLLER_KUBERNETES must say which models")
        return self
