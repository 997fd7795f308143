"""The operator's settings, from environment variables with the prefix EEM_OPERATOR_."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from apparate.service.lease import DURATION_S
from apparate.service.settings import COMMA_SEPARATED, ServiceSettings, own_name


class OperatorSettings(ServiceSettings):
    """Read once in __main__ and passed down."""

    prefix: ClassVar[str] = "EEM_OPERATOR_"

    namespaces: Annotated[tuple[str, ...], *COMMA_SEPARATED] = Field(
        default=(), description="Comma-separated namespaces whose models are looked after; empty: all."
    )
    worker_image: str = Field(
        min_length=1,
        max_length=512,
        description="Image of workers and prepare Jobs where spec.serving.image is not set.",
    )
    redis_url: str = Field(
        default="",
        description="Redis that workers send feedback to; each model gets a Secret with this URL. Empty: workers serve "
        "the plain model.",
    )
    redis_secret: str = Field(
        default="",
        max_length=253,
        description="Secret in the namespace of each model with the Redis URL under `url`, and under `ca.crt` the CA "
        "of a rediss:// server if it has its own; used instead of the URL above.",
    )
    monitor_labels: Annotated[tuple[str, ...], *COMMA_SEPARATED] = Field(
        default=(),
        description="Comma-separated NAME=VALUE labels of the PodMonitors of models: those that your Prometheus "
        "selects by.",
    )
    scrape_interval: str = Field(
        default="15s",
        pattern=r"^([0-9]+(ms|s|m))?$",
        description="Time between two scrapes of workers, as 15s; empty: no PodMonitors are made.",
    )
    lease_namespace: str = Field(
        default="default", min_length=1, max_length=63, description="Namespace of the Lease that the leader holds."
    )
    lease_name: str = Field(
        default="apparate-operator", min_length=1, max_length=63, description="Name of the Lease that the leader holds."
    )
    lease_seconds: int = Field(
        default=DURATION_S,
        ge=3,
        le=600,
        description="Another replica leads when the leader has not renewed the Lease for so long, in seconds; the "
        "leader renews it five times as often, and stops when it could not for two thirds of it.",
    )
    name: str = Field(
        default_factory=own_name, min_length=1, max_length=253, description="Name of this replica in the Lease."
    )
    host: str = Field(default="0.0.0.0", description="Address that /healthz, /readyz and /metrics listen on.")
    health_port: int = Field(
        default=8080, ge=0, le=65535, description="TCP port of /healthz, /readyz and /metrics; 0 picks a free one."
    )
    resync_seconds: float = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="Everything is listed and looked at anew so often, whatever was watched, in seconds.",
    )
    watch_seconds: int = Field(
        default=50,
        ge=2,
        le=3600,
        description="Longest time of one watch request, in seconds; one that says nothing 5 s longer is given up.",
    )
    workers: int = Field(default=6, ge=1, le=64, description="Models that are worked on at the same time.")
    kubeconfig: str = Field(
        default="", description="Kubeconfig file; empty: the pod's own token, or outside of a pod $KUBECONFIG."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Least level logged.")

    @field_validator("monitor_labels")
    @classmethod
    def _pairs(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [one for one in given if not one.partition("=")[0] or "=" not in one]:
            raise ValueError(f"{wrong[0]!r} is not NAME=VALUE")
        return given

    @property
    def monitor_label_pairs(self) -> tuple[tuple[str, str], ...]:
        """Names and values of `monitor_labels`."""
        return tuple((name, value) for name, _, value in (one.partition("=") for one in self.monitor_labels))
