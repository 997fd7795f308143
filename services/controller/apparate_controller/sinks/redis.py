"""Plans of local mode: a Redis Stream per model whose newest entry is the plan in force."""

from __future__ import annotations

import contextlib
from typing import Any

from pydantic import ValidationError
from redis.asyncio import Redis

from apparate.contract.resource import PlanStatus
from apparate.contract.shape import problem_of
from apparate.contract.stream import KEY_TTL_S, PLAN_FIELD, PLANS_MAX_ENTRIES, plans_key
from apparate.plan import newer
from apparate_controller.errors import PlanRefused, PlanUnreadable

HISTORY = 20  # plans shown to roll back to; the stream has more


class RedisPlanSink:
    """Adapter of loop.PlanSink."""

    def __init__(self, commands: Redis, model: str) -> None:
        self._commands, self._key = commands, plans_key(model)

    async def current(self) -> PlanStatus | None:
        """The plan in force, None when there is none. Reading it keeps it from expiring. Raises PlanUnreadable."""
        async with self._commands.pipeline(transaction=False) as pipeline:
            pipeline.xrevrange(self._key, count=1)
            pipeline.expire(self._key, KEY_TTL_S)
            newest, _ = await pipeline.execute()
        if not newest:
            return None
        entry, fields = newest[0]
        try:
            return PlanStatus.model_validate_json(fields.get(PLAN_FIELD, b""))
        except ValidationError as error:
            raise PlanUnreadable(f"entry {entry.decode()} of {self._key} is no plan: {problem_of(error)}") from None

    async def publish(self, plan: PlanStatus) -> bool:
        """Put a plan in force; False when it already is. Raises PlanRefused when another one is, not older than it."""
        try:
            current = await self.current()
        except PlanUnreadable:
            current = None  # whatever it is, workers cannot run it either
        if current is not None:
            if current.revision == plan.revision and current.to_plan().same_settings(plan.to_plan()):
                return False
            if not newer(plan.revision, current.revision):
                raise PlanRefused(plan.revision, current.revision)
        async with self._commands.pipeline(transaction=True) as pipeline:
            pipeline.xadd(
                self._key,
                {PLAN_FIELD: plan.model_dump_json(by_alias=True)},
                maxlen=PLANS_MAX_ENTRIES,
                approximate=True,
            )
            pipeline.expire(self._key, KEY_TTL_S)
            await pipeline.execute()
        return True

    async def history(self) -> list[PlanStatus]:
        """The last plans that were in force before this one, newest first."""
        found = []
        entries: Any = await self._commands.xrevrange(self._key, count=HISTORY + 1)
        for _, fields in entries:
            with contextlib.suppress(ValidationError):
                found.append(PlanStatus.model_validate_json(fields.get(PLAN_FIELD, b"")))
        return found[1:]
