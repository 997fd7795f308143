"""What the status says: catalog and counters by the operator, plan and what it does by the controller.

Status shapes have no defaults in the schema: what is written is what is read back.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from apparate.contract.shape import ListMap, Ratio, Rule, StatusShape
from apparate.plan import MAX_REVISION, Plan, RampSetting

Index = Annotated[int, Field(ge=0, le=65_535)]
Layer = Annotated[str, Field(max_length=512)]
MAX_RAMPS = 1024


def bounded(revision: Any) -> Any:
    """A plan revision that can be counted on from: one above the highest, from before there was one, is the highest."""
    return min(revision, MAX_REVISION) if isinstance(revision, int) else revision


Revision = Annotated[
    int,
    Field(ge=0),
    BeforeValidator(bounded),
    Rule(
        f"self <= {MAX_REVISION}",
        f"revision is {{self}}, must be at most {MAX_REVISION}: a plan that is put there by hand takes one above the "
        "plan in force",
        None,  # what a cluster has already must be readable, or nobody could put it right
    ),
]
ATOMIC = ConfigDict(json_schema_extra={"x-kubernetes-map-type": "atomic"})
"""One value with one writer: who applies it replaces all of it. Of a plan that somebody edited by hand, parts would
otherwise stay theirs, and stand in the next plan beside what was decided."""


class RampStatus(StatusShape):
    """One active ramp as the status shows it."""

    ramp: Index = Field(description="Index in the catalog.")
    layer: Layer = Field(default="", description="Name of the layer the ramp reads.")
    threshold: float = Field(ge=0, le=1, description="Requests with an error score below it exit here; 0 is closed.")


class PlanStatus(StatusShape):
    """The plan in force, as status and local mode carry it."""

    model_config = ATOMIC

    revision: Revision = Field(description="Rises by one with each decision; a worker takes only a newer one.")
    reason: str = Field(default="", max_length=128, description="Why it was decided, in one word.")
    message: str = Field(default="", max_length=4096, description="Why it was decided, with the numbers.")
    decided_at: str = Field(default="", max_length=64, description="When it was decided, RFC 3339; empty before.")
    catalog: str = Field(default="", max_length=128, description="Digest of the catalog the ramps are of.")
    active_ramps: int = Field(default=0, ge=0, description="Number of active ramps.")
    ramps: Annotated[tuple[RampStatus, ...], ListMap("ramp")] = Field(
        default=(), max_length=MAX_RAMPS, description="The active ramps; none is the plain model."
    )

    @classmethod
    def of(
        cls, plan: Plan, layers: tuple[str, ...] = (), *, reason: str = "", message: str = "", decided_at: str = ""
    ) -> PlanStatus:
        """The status shape of a core plan; `layers` are the catalog's names."""
        ramps = tuple(
            RampStatus(ramp=s.ramp, layer=layers[s.ramp] if s.ramp < len(layers) else "", threshold=s.threshold)
            for s in plan.ramps
        )
        return cls(
            revision=plan.revision,
            reason=reason,
            message=message,
            decided_at=decided_at,
            catalog=plan.catalog,
            active_ramps=len(ramps),
            ramps=ramps,
        )

    def to_plan(self) -> Plan:
        """The core plan. Raises InvalidPlan."""
        return Plan(self.revision, tuple(RampSetting(r.ramp, r.threshold) for r in self.ramps), self.catalog)


class CatalogRamp(StatusShape):
    """One ramp that there is."""

    ramp: Index = Field(description="Index in the catalog.")
    layer: Layer = Field(default="", description="Name of the layer the ramp reads.")


class Catalog(StatusShape):
    """All ramps of the prepared model."""

    digest: str = Field(min_length=1, max_length=128, description="Digest of the catalog; plans name it.")
    ramps: Annotated[tuple[CatalogRamp, ...], ListMap("ramp")] = Field(
        default=(), max_length=MAX_RAMPS, description="Every ramp there is, shallow to deep."
    )
    max_active_ramps: int = Field(
        default=0, ge=0, description="Most ramps that can be active within budget.rampOverhead."
    )
    config_map: str = Field(
        default="", max_length=253, description="ConfigMap that holds the whole catalog under the key catalog.json."
    )


class AccuracyLoss(StatusShape):
    """Released answers that disagree with the model's own."""

    value: Ratio = Field(description="Share of the answers in the window (0..1).")
    upper: Ratio = Field(description="Upper confidence bound of that share (0..1).")
    samples: int = Field(ge=0, description="Answers that were looked at.")


class RampObserved(StatusShape):
    """What one active ramp does."""

    ramp: Index = Field(description="Index in the catalog.")
    exit_rate: Ratio = Field(description="Share of the requests that exit here (0..1).")
    agreement: Ratio | None = Field(
        default=None, description="Share of those whose answer is the model's own (0..1); missing when none exits."
    )
    saved_ms: float | None = Field(default=None, description="Time saved for each of those, in milliseconds.")


class Observed(StatusShape):
    """What the window says of the plan in force."""

    model_config = ATOMIC
    accuracy_loss: AccuracyLoss | None = Field(default=None, description="Answers that disagree with the model's own.")
    latency_saved_ratio: float = Field(
        default=0.0, ge=-1, le=1, description="Share of the plain pass's time that answers leave earlier, on average."
    )
    exit_rate: Ratio = Field(default=0.0, description="Share of the requests that exit at any ramp (0..1).")
    ramps: Annotated[tuple[RampObserved, ...], ListMap("ramp")] = Field(
        default=(), max_length=MAX_RAMPS, description="What each active ramp does."
    )


class Delivery(StatusShape):
    """Which workers run the plan in force."""

    model_config = ATOMIC
    revision: Revision = Field(description="Revision that is to run.")
    workers: int = Field(ge=0, description="Workers that are heard of.")
    updated_workers: int = Field(ge=0, description="Those of them that run that revision.")


class Condition(StatusShape):
    """One thing that is true, false or unknown, and why."""

    type: str = Field(min_length=1, max_length=316, description="What it is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it is so.")
    reason: str = Field(
        min_length=1,
        max_length=1024,
        pattern="^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="Why, in one word; the same word as in metrics, logs and Events.",
    )
    message: str = Field(default="", max_length=32_768, description="Why, with numbers and the next step.")
    observed_generation: int | None = Field(default=None, ge=0, description="Generation of the spec that it is about.")
    last_transition_time: str = Field(
        max_length=64,
        description="When its status last changed, RFC 3339.",
        json_schema_extra={"format": "date-time"},
    )


class Status(StatusShape):
    """What is there."""

    observed_generation: int | None = Field(
        default=None, ge=0, description="Generation of the spec that the operator has acted on."
    )
    replicas: int | None = Field(default=None, ge=0, description="Worker pods.")
    ready_replicas: int | None = Field(default=None, ge=0, description="Workers that serve.")
    selector: str | None = Field(default=None, max_length=4096, description="Label selector of the worker pods.")
    catalog: Catalog | None = Field(default=None, description="All ramps of the prepared model.")
    plan: PlanStatus | None = Field(default=None, description="The plan in force.")
    history: tuple[PlanStatus, ...] = Field(
        default=(), max_length=10, description="Plans that were in force before, newest first: what to roll back to."
    )
    observed: Observed | None = Field(default=None, description="What the window says of the plan in force.")
    delivery: Delivery | None = Field(default=None, description="Which workers run the plan in force.")
    conditions: Annotated[tuple[Condition, ...], ListMap("type")] = Field(
        default=(), max_length=32, description="What is true, false or unknown."
    )
