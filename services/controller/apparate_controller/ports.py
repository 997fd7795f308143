"""What one model's control loop works with: where feedback comes from, where plans go, who is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from apparate.adaptation.policy import Decision
from apparate.contract.resource import PlanStatus
from apparate_controller.intake import Session, Took
from apparate_controller.sources.heartbeats import WorkerState
from apparate_controller.sources.redis_stream import Backlog, Entry


class FeedbackSource(Protocol):
    """Where feedback comes from, and where progress is kept in step with its acks."""

    async def load(self) -> dict[str, str]:
        """The stored progress."""

    async def open(self, last_id: str) -> str:
        """Get ready to read on; the id to go on from."""

    async def read(self) -> list[Entry]:
        """The next entries; empty when none came for a while."""

    async def commit(self, ids: Sequence[str], stored: Mapping[str, str], forgotten: Sequence[str] = ()) -> None:
        """Store progress and ack entries, both or neither."""

    def history(self, last_id: str) -> AsyncIterator[list[Entry]]:
        """Pages of entries up to and with an id, newest first."""

    async def backlog(self) -> Backlog:
        """What waits."""


class PlanSink(Protocol):
    """Where plans go."""

    async def current(self) -> PlanStatus | None:
        """The plan in force."""

    async def publish(self, plan: PlanStatus) -> bool:
        """Put a plan in force; False when it already is. Raises PlanRefused."""

    async def history(self) -> list[PlanStatus]:
        """Plans that were in force before, newest first."""


class Heartbeats(Protocol):
    """Who serves the model."""

    async def workers(self) -> tuple[WorkerState, ...]:
        """Live workers."""


class Observer(Protocol):
    """What the loop tells of itself: logs and metrics."""

    def took(self, took: Took) -> None:
        """Entries were worked off."""

    def decided(self, decision: Decision) -> None:
        """A decision was taken."""

    def looked(self, session: Session, workers: Sequence[WorkerState], backlog: Backlog) -> None:
        """Workers and backlog were looked at."""

    def failed(self, error: BaseException) -> None:
        """An attempt failed and will be repeated."""

    def recovered(self) -> None:
        """An attempt succeeded after others had failed."""


@dataclass(frozen=True)
class Ports:
    """The adapters one loop works with."""

    source: FeedbackSource
    sink: PlanSink
    heartbeats: Heartbeats
    observer: Observer
