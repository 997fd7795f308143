"""Plans come from a source and are taken only when they are newer and possible; otherwise the plan in force stays.

Adapters of PlanSource: RedisPlanSource, local mode's stream of plans; objects.ObjectPlanSource, a status on Kubernetes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from pydantic import ValidationError
from redis.asyncio import Redis

from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.contract.shape import problem_of
from apparate.contract.stream import PLAN_FIELD
from apparate.plan import MAX_REVISION, InvalidPlan, Plan, newer
from apparate.service.redis_client import UNREACHABLE, connect, failing
from apparate.service.telemetry import get_logger

BLOCK_S = 1.0  # longest read; after it a wiped stream is noticed
BACKOFF_S = (0.05, 1.0)  # first and longest pause between attempts
log = get_logger(__name__)

REFUSALS = ("malformed", "older", "catalog", "ramp", "budget")
"""Why plans are refused; the metric label."""


class RefusedPlan(ValueError):
    """A plan that this worker does not run; `reason` is one of REFUSALS."""

    def __init__(self, reason: str, message: str, revision: int = 0) -> None:
        super().__init__(message)
        self.reason, self.revision = reason, revision


class PlanSource(Protocol):
    """Where plans come from."""

    def plans(self) -> AsyncIterator[bytes]:
        """Plans as PlanStatus JSON, the newest first of all, then each as it comes; never ends, never raises."""

    async def close(self) -> None:
        """Let go of connections."""


class RedisPlanSource:
    """The stream of plans of one model; its newest entry is in force."""

    def __init__(self, url: str, key: str) -> None:
        self._client: Redis = connect(url, block_s=BLOCK_S)
        self._key = key

    async def plans(self) -> AsyncIterator[bytes]:
        """See PlanSource. A stream that was wiped, or a server that was replaced, is read anew."""
        last, failures, said = b"0-0", 0, ""
        while True:
            try:
                newest: Any = await self._client.xrevrange(self._key, count=1)
                if not newest or newest[0][0] == last:
                    found: Any = await self._client.xread({self._key: last}, block=int(BLOCK_S * 1000))
                    newest = found[0][1][-1:] if found else []
                failures, said = 0, ""
            except UNREACHABLE as error:
                failures += 1
                if (words := failing(error).words) != said:
                    log.warning("plans cannot be read; the plan in force stays", error=words)
                said = words
                first, longest = BACKOFF_S
                await asyncio.sleep(min(longest, first * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))
                continue
            if newest and newest[0][0] != last:
                last = newest[0][0]
                yield newest[0][1].get(PLAN_FIELD, b"")

    async def close(self) -> None:
        """Close the connection."""
        await self._client.aclose()


class PlanKeeper:
    """The plan in force, and the rule for the next one. A fresh worker runs the plain model, revision 0."""

    def __init__(self, catalog: RampCatalog, ramp_budget: float) -> None:
        self._catalog = catalog
        self.ramp_budget = ramp_budget
        """Most that active ramps may add to a pass, as a share of it; binds the next plan, not the one in force."""
        self.plan = Plan(0)
        self.refused: RefusedPlan | None = None
        """The last plan that was not run; None once a plan is taken after it."""

    def take(self, document: bytes) -> Plan | None:
        """The new plan in force; None when it is the one in force already. Raises RefusedPlan."""
        try:
            return self._take(document)
        except RefusedPlan as error:
            self.refused = error
            raise

    def _take(self, document: bytes) -> Plan | None:
        try:
            plan = PlanStatus.model_validate_json(document).to_plan()
        except ValidationError as error:
            raise RefusedPlan("malformed", f"plan is not usable: {problem_of(error)}") from None
        except InvalidPlan as error:
            raise RefusedPlan("malformed", str(error)) from None
        if plan.revision == self.plan.revision and plan.same_settings(self.plan):
            return None
        self._check(plan)
        self.plan, self.refused = plan, None
        return plan

    def _check(self, plan: Plan) -> None:
        problem = self._problem(plan)
        if problem is not None:
            reason, message = problem
            raise RefusedPlan(reason, message, plan.revision)

    def _problem(self, plan: Plan) -> tuple[str, str] | None:
        """(reason, message) of why `plan` cannot be run; None when it can."""
        catalog = self._catalog
        if not newer(plan.revision, self.plan.revision):
            far = MAX_REVISION // 2
            above = f"more than {far} above" if plan.revision - self.plan.revision > far else "not above"
            return "older", f"plan revision {plan.revision} is {above} {self.plan.revision}, in force here"
        if plan.catalog != catalog.digest and (plan.catalog or plan.ramps):
            return "catalog", f"plan is for catalog {plan.catalog!r}, this worker has {catalog.digest!r}"
        if plan.ramps and plan.active[-1] >= catalog.ramps:
            return "ramp", f"ramp {plan.active[-1]} is not in the catalog, which has {catalog.ramps} ramps"
        if not catalog.fits(plan.active, self.ramp_budget):
            share = catalog.overhead_share(plan.active)
            return "budget", f"ramps {list(plan.active)} add {share:.4f} of a pass, allowed {self.ramp_budget}"
        return None


async def follow(
    source: PlanSource, keeper: PlanKeeper, apply: Callable[[Plan], None], refused: Callable[[str], None]
) -> None:
    """Take plans from `source` until cancelled: `apply` each new one, `refused(reason)` for each that is not run."""
    async for document in source.plans():
        try:
            plan = keeper.take(document)
        except RefusedPlan as error:
            log.warning("plan refused", reason=error.reason, error=str(error), in_force=keeper.plan.revision)
            refused(error.reason)
            continue
        if plan is not None:
            apply(plan)
            log.info("plan in force", revision=plan.revision, ramps=list(plan.active), exits_open=plan.exits_open)
