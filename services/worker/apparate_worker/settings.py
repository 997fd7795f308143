"""Settings of the worker process, from EEM_WORKER_ variables."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from apparate.service.settings import ServiceSettings, own_name
from apparate.service.termination import LOG


class WorkerSettings(ServiceSettings):
    """What one worker serves and where. What the model needs is in its document, not here."""

    prefix: ClassVar[str] = "EEM_WORKER_"

    document: Path | None = Field(
        default=None,
        description="YAML file with the EarlyExitModel to serve. With EEM_WORKER_OBJECT it may be missing (the object "
        "is read from the API server at start), or must be a copy of the object with its metadata.uid.",
    )
    object: str = Field(
        default="",
        pattern=r"^$|^[a-z0-9][-a-z0-9]*/[a-z0-9][-a-z0-9.]*$",
        description="NAMESPACE/NAME of the EarlyExitModel whose status.plan is followed; empty: plans come from Redis.",
    )
    kubeconfig: str = Field(
        default="", description="Kubeconfig file for EEM_WORKER_OBJECT; empty: the pod's own token."
    )
    model: str = Field(
        default="", description="metadata.name to serve when the file has several documents; empty: all of them."
    )
    model_control: Literal["none", "explicit"] = Field(
        default="none",
        description="explicit: requests may load, replace and unload the models of EEM_WORKER_DOCUMENT (the protocol's "
        "model repository). Whoever reaches the worker's ports can do so.",
    )
    workers: int = Field(
        default=0,
        ge=0,
        le=10_000,
        description="How many workers share the model's answers, and with them its accuracy budget; 0: "
        "spec.serving.replicas.",
    )
    prepared: Path | None = Field(default=None, description="Folder of the prepared model; default: the document's.")
    redis_url: str = Field(default="", description="Redis for feedback, and for plans in local mode; empty: neither.")
    name: str = Field(default_factory=own_name, min_length=1, max_length=128, description="Name in feedback and logs.")
    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    http_port: int | None = Field(default=None, ge=0, le=65535, description="HTTP port, 0 a free one; default: spec.")
    grpc_port: int | None = Field(default=None, ge=0, le=65535, description="gRPC port, 0 a free one; default: spec.")
    grace_seconds: float = Field(
        default=0.5,
        ge=0,
        le=600,
        description="Accept requests so long after SIGTERM, in seconds, while clients learn that it stops.",
    )
    termination_log: Path = Field(
        default=LOG, description="File that Kubernetes reads the reason of the end from; written where it exists."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Least level logged.")

    @model_validator(mode="after")
    def _something_to_serve(self) -> WorkerSettings:
        if self.document is None and not self.object:
            raise ValueError("EEM_WORKER_DOCUMENT or EEM_WORKER_OBJECT must say what to serve")
        return self
