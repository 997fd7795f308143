"""Hand-written fakes, one per port of the controller, that pass the contract suites of the real adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from apparate.adaptation.policy import Decision, Observed, Reason, Search
from apparate.contract.resource import PlanStatus
from apparate.feedback import FeedbackBatch, FeedbackWindow
from apparate.plan import Plan, newer, revision_after
from apparate_controller.errors import PlanRefused
from apparate_controller.intake import Session, Took
from apparate_controller.progress import stream_order
from apparate_controller.sources.heartbeats import WorkerState
from apparate_controller.sources.redis_stream import Backlog, Entry


class FakeSession:
    """Decides a new plan each `every` records; no two plans in a row are equal."""

    def __init__(self, plan: Plan, *, every: int = 100, size: int = 1000, ramps: int = 3, catalog: str = "") -> None:
        self.plan, self.every, self.catalog = plan, every, catalog
        self.window = FeedbackWindow(size, ramps)
        self.fed: list[tuple[str, int, int]] = []
        self.refilled: list[tuple[str, int, int]] = []
        self._since = 0
        self.observed = Observed()
        self.paused = False

    @property
    def adapts(self) -> bool:
        return not self.paused

    def start(self) -> Decision | None:
        if self.plan.revision and self.plan.catalog == self.catalog:
            return None
        return self._next(Reason.STARTED)

    def take_search(self) -> Search | None:
        return None

    def propose(self, ramps: tuple[int, ...]) -> None:
        raise AssertionError("proposed without a search")

    def feed(self, batch: FeedbackBatch, *, more: bool = False) -> Decision | None:
        self.window.add(batch)
        self.fed.append((batch.worker, batch.epoch, batch.seq))
        self._since += len(batch)
        if self._since < self.every or self.paused:
            return None
        self._since = 0
        return self._next(Reason.THRESHOLDS_TUNED)

    def refill(self, batch: FeedbackBatch) -> None:
        self.window.add(batch)
        self.refilled.append((batch.worker, batch.epoch, batch.seq))

    def observe(self) -> Observed:
        self.observed = Observed(samples=len(self.window))
        return self.observed

    def take_up(self, plan: Plan) -> bool:
        if plan.catalog != self.catalog:
            return False
        self.plan = plan
        return True

    def describe(self) -> dict[str, Any]:
        return {"window": {"records": len(self.window), "size": self.window.size}, "ramps": []}

    def _next(self, reason: Reason) -> Decision:
        revision = revision_after(self.plan.revision)
        self.plan = Plan.of(revision, [1], [0.25 if revision % 2 else 0.5], self.catalog)
        return Decision(reason, f"revision {revision}", self.plan, Observed(samples=len(self.window)))


class FakePlanSink:
    """Plans in memory."""

    def __init__(self) -> None:
        self.plans: list[PlanStatus] = []

    async def current(self) -> PlanStatus | None:
        return self.plans[-1] if self.plans else None

    async def publish(self, plan: PlanStatus) -> bool:
        current = await self.current()
        if current is not None:
            if current.revision == plan.revision and current.to_plan().same_settings(plan.to_plan()):
                return False
            if not newer(plan.revision, current.revision):
                raise PlanRefused(plan.revision, current.revision)
        self.plans.append(plan)
        return True

    async def history(self) -> list[PlanStatus]:
        return self.plans[-2::-1]


class FakeHeartbeats:
    """Workers told by the test."""

    def __init__(self, *workers: WorkerState) -> None:
        self.live = workers

    async def workers(self) -> tuple[WorkerState, ...]:
        return self.live


class FakeFeedbackSource:
    """A stream in memory; `fail` holds errors that the next calls raise instead of answering."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.stored: dict[str, str] = {}
        self.acked: list[str] = []
        self.fail: dict[str, list[Exception]] = {}
        self._delivered = 0

    def add(self, payload: bytes | None) -> str:
        entry = Entry(f"{len(self.entries) + 1}-0", payload)
        self.entries.append(entry)
        return entry.id

    def _maybe_fail(self, call: str) -> None:
        if self.fail.get(call):
            raise self.fail[call].pop(0)

    async def load(self) -> dict[str, str]:
        self._maybe_fail("load")
        return dict(self.stored)

    async def open(self, last_id: str) -> str:
        self._maybe_fail("open")
        self._delivered = 0
        return last_id

    async def read(self) -> list[Entry]:
        self._maybe_fail("read")
        waiting = [e for e in self.entries[self._delivered :] if e.id not in self.acked]
        self._delivered = len(self.entries)
        if not waiting:
            await asyncio.sleep(0.01)
        return waiting

    async def commit(self, ids: Sequence[str], stored: Mapping[str, str], forgotten: Sequence[str] = ()) -> None:
        self._maybe_fail("commit")
        self.stored.update(stored)
        for name in forgotten:
            self.stored.pop(name, None)
        self.acked.extend(ids)

    async def history(self, last_id: str) -> AsyncIterator[list[Entry]]:
        known = [e for e in self.entries if stream_order(e.id) <= stream_order(last_id)]
        if known:
            yield known[::-1]

    async def backlog(self) -> Backlog:
        return Backlog(pending=0, lag=len(self.entries) - self._delivered, length=len(self.entries))


class FakeObserver:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.tooks: list[Took] = []
        self.decisions: list[Decision] = []
        self.errors: list[BaseException] = []
        self.recoveries = 0

    def took(self, took: Took) -> None:
        self.tooks.append(took)

    def decided(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def looked(self, session: Session, workers: Sequence[WorkerState], backlog: Backlog) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        self.errors.append(error)

    def recovered(self) -> None:
        self.recoveries += 1
