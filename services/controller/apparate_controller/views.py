"""What the HTTP API answers with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from apparate.contract.resource import PlanStatus


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


class BudgetView(_View):
    """What a model may cost."""

    accuracy_loss: float = Field(description="Share of answers that may differ from the model's own.")
    ramp_overhead: float = Field(description="Share of a pass that its ramps may cost.")
    confidence: float = Field(description="Of the certificate.")


class ObservedView(_View):
    """What the window says of the plan in force."""

    samples: int = Field(description="Answers that were looked at.")
    loss: float = Field(description="Share of them that differ from the model's own.")
    loss_upper: float = Field(description="Upper bound of that share, with the budget's confidence.")
    saving: float = Field(description="Share of the plain pass's time that answers come sooner, on average.")
    exit_rate: float = Field(description="Share of answers that left early.")


class Summary(_View):
    """One model in a line."""

    namespace: str
    name: str
    ready: bool = Field(description="Its feedback is read.")
    reason: str = Field(description="Why not, when it is not ready.")
    paused: bool = Field(description="Decisions stop and the plan stays as it is; what is observed goes on.")
    paused_since: str = Field(description="ISO 8601; empty when it is not paused, or that is not known.")
    paused_by: str = Field(description="Who or what paused it; empty when it is not, or that is not known.")
    guarded: int = Field(description="Live workers whose guard has closed the exits.")
    budget: BudgetView
    last: ObservedView | None = Field(description="What the window says now; null before the first feedback.")
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
    served: int = Field(description="Requests that it has answered since it started.")
    refused: str = Field(description="Why it does not run the last plan it was given; empty when it does.")
    refused_revision: int = Field(description="Revision of the plan it refused; 0 when there is none.")


class Counts(_View):
    """Feedback since it was first read, over restarts."""

    batches: int
    records: int
    duplicates: int = Field(description="Batches that came again and were dropped.")
    lost: int = Field(description="Batches missing in their worker's numbers.")
    refused: int = Field(description="Entries that could not be used.")
    lag: int = Field(description="Stream entries not yet read.")
    pending: int = Field(description="Stream entries read and not yet acked.")


class DecisionView(ObservedView):
    """One decision, and what was observed when it was taken: of no samples when that was not looked at."""

    at: str
    reason: str
    message: str
    revision: int | None = Field(description="Of the new plan; null when the plan in force stayed.")
    times: int = Field(description="Decisions with this reason in a row that changed no plan.")
    by: str = Field(description="Who or what asked for it; empty for the controller's own, or when that is not known.")


class ModelView(Summary):
    """One model with all that is known of it."""

    catalog: str | None = Field(description="Digest of the catalog in use.")
    plan: PlanStatus = Field(description="The plan in force; revision 0 is the plain model, before the first.")
    window: dict[str, Any] = Field(description="Records in the window, its size, and records ever added.")
    observed: dict[str, Any] = Field(description="What the window says of the plan in force, now.")
    ramps: list[dict[str, Any]] = Field(description="What each active ramp does on the window.")
    decisions: list[DecisionView] = Field(description="Newest first.")
    feedback: Counts
    workers: list[Worker]


class CatalogView(_View):
    """Every ramp that there is, with its latencies in milliseconds by profiled batch size B."""

    digest: str
    layers: list[str] = Field(description="[R] where each ramp sits, shallow to deep.")
    batch_sizes: list[int] = Field(description="[B] that were profiled.")
    reach_ms: list[list[float]] = Field(description="[B, R] from the start of the pass to the ramp's site.")
    overhead_ms: list[list[float]] = Field(description="[B, R] that the ramp itself costs.")
    full_ms: list[float] = Field(description="[B] of the whole plain pass.")


class LatenciesView(_View):
    """Distribution of the newest answers' times, from arrival at a worker to the answer."""

    samples: int
    quantiles: list[float] = Field(description="Shares of the answers, 0..1.")
    released_ms: list[float] = Field(description="[quantiles] in milliseconds.")
    plain_ms: list[float] = Field(description="[quantiles] of the plain model, by the profile, in milliseconds.")


class PlanReplay(_View):
    """What a plan would have done to the requests of today's window, had it been in force."""

    revision: int
    records: int = Field(description="Records that know all of its ramps; it is judged on these.")
    loss: float = Field(description="Share of answers that would have differed from the model's own.")
    saving: float = Field(description="Share of the plain pass's time that answers would have come sooner, on average.")
    exit_rate: float = Field(description="Share of answers that would have left early.")


class PlanReplays(_View):
    """The plan in force and those before it, on today's window."""

    plans: list[PlanReplay] = Field(
        description="Newest first; without those of another catalog, and those of whose ramps there is no record."
    )


class WhatIfRamp(_View):
    """One ramp under a budget that is asked about."""

    ramp: int
    layer: str
    threshold: float
    exit_rate: float = Field(description="Share of requests that would leave here, 0..1.")


class WhatIfAnswer(_View):
    """What tuning for one budget would find."""

    accuracy_loss: float = Field(description="The budget that was asked about.")
    in_force: bool = Field(description="It is the model's own budget.")
    loss: float = Field(description="Share of answers that would have differed from the model's own.")
    loss_upper: float | None = Field(description="Its certified upper bound; null where nothing is certified.")
    certified: bool = Field(description="False: too few records, so every ramp would stay closed.")
    saving: float = Field(description="Share of the plain pass's time that answers would come sooner on average.")
    mean_ms: float = Field(description="Mean time from the start of the pass to the answer, in milliseconds.")
    exit_rate: float
    ramps: list[WhatIfRamp]


class WhatIf(_View):
    """What other budgets would do, on the records of the window."""

    records: int = Field(description="Records that were looked at; answers are missing when there are none.")
    problem: str = Field(description="Why there is no answer, and what to do; empty when there is one.")
    loss: float | None = Field(description="Of the plan in force on the same records.")
    saving: float | None = Field(description="Of the plan in force on the same records.")
    exit_rate: float | None = Field(description="Of the plan in force on the same records.")
    answers: list[WhatIfAnswer] = Field(description="One for each budget, in the order asked.")


class Health(_View):
    """A probe's answer."""

    status: Literal["ok", "failing"]
    problems: dict[str, str] = Field(description="By model, what is in the way.")
