"""One model's control loop: feedback from its source, through the session, to the plan sink; ack after the sink."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from apparate.adaptation.policy import Decision, Reason, Search
from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.contract.rollback import NoSuchPlan, earlier, rolled_back
from apparate.feedback import FeedbackBatch
from apparate.plan import InvalidPlan, Plan, newer, newest, revision_after
from apparate_controller.errors import PlanRefused, PlanUnknown, PlanUnreadable, problem_of
from apparate_controller.intake import Intake, Session, Took
from apparate_controller.journal import Journal, now
from apparate_controller.latencies import Latencies
from apparate_controller.progress import Progress
from apparate_controller.sources.heartbeats import WorkerState
from apparate_controller.sources.redis_stream import Backlog, Entry

LOOK_AROUND_S = 1.0  # workers, backlog and the plan in force are looked at this often
SEARCH_NICENESS = 10
COMMIT_S = 0.25  # between acks; each is a transaction, and what is not acked is only read again after a crash
COMMIT_ENTRIES = 500  # unacked at most, or so: Redis keeps each in memory once more
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0  # between attempts to reach Redis; recovery takes no longer than the longest

T = TypeVar("T")


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


class ModelLoop:
    """Runs one model under one catalog until `stop`; survives every failure of its ports.

    The session is touched by one thread only, so that a tuning run never holds up the HTTP API.
    """

    def __init__(self, model: str, catalog: RampCatalog, new_session: Callable[[Plan], Session], ports: Ports) -> None:
        self.model, self.catalog = model, catalog
        self.journal = Journal()
        self.workers: tuple[WorkerState, ...] = ()
        self.backlog = Backlog()
        self.problem = "has not read any feedback yet"
        """Why the loop makes no progress; empty when it does."""
        self.turned_at = time.monotonic()
        """Monotonic time of the last turn, successful or not."""
        self._new_session, self._ports = new_session, ports
        self._intake: Intake | None = None
        self._looked_at = 0.0
        self._committed_at = 0.0
        self._stopping = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"session {model}")
        self._search_thread = ThreadPoolExecutor(1, thread_name_prefix=f"search {model}", initializer=_give_way)
        self._searching: asyncio.Task[None] | None = None
        self._reading: asyncio.Future[list[Entry]] | None = None

    async def run(self) -> None:
        """Work until `stop`; then finish the entries in hand and store progress."""
        pause = FIRST_PAUSE_S
        try:
            while not self._stopping.is_set():
                try:
                    await self._open()
                    while not self._stopping.is_set():
                        await self._turn()
                        if self.problem:
                            self.problem, pause = "", FIRST_PAUSE_S
                            self._ports.observer.recovered()
                except PlanRefused as error:
                    self._intake = None  # another plan is in force: go on from that one
                    pause = await self._pause(error, pause)
                except Exception as error:  # noqa: BLE001 - outermost loop: told by the observer, then tried again
                    pause = await self._pause(error, pause)
            if self._intake is not None and self._intake.uncommitted:
                with contextlib.suppress(Exception):  # not stored: read again by whoever comes next
                    await self._commit(self._intake)
        finally:
            if self._searching is not None:
                self._searching.cancel()
                await asyncio.gather(self._searching, return_exceptions=True)
            self._search_thread.shutdown(wait=False)
            self._thread.shutdown(wait=False)

    def stop(self) -> None:
        """Make `run` end soon."""
        self._stopping.set()
        if self._reading is not None:
            self._reading.cancel()

    async def in_session(self, call: Callable[[Session], T]) -> T | None:
        """The result of a call on the session in its own thread; None when there is no session yet."""
        intake = self._intake
        return None if intake is None else await self._in_thread(lambda: call(intake.session))

    async def latencies(self) -> dict[str, Any]:
        """The distribution of the newest answers' times, as Latencies tells it."""
        intake = self._intake
        if intake is None:
            return Latencies().distribution(self.catalog, Plan(0))
        return await self._in_thread(lambda: intake.latencies.distribution(self.catalog, intake.session.plan))

    async def history(self) -> list[PlanStatus]:
        """Plans that were in force before, newest first."""
        return await self._ports.sink.history()

    async def roll_back(self, revision: int) -> PlanStatus:
        """Put an earlier plan in force again under a new revision; adaptation goes on from it.

        Raises PlanUnknown when it is not in the history or is of another catalog, and PlanRefused.
        """
        current = await self._ports.sink.current()
        in_force = current.revision if current else 0
        try:
            old = earlier(await self.history(), revision, in_force=in_force, catalog=self.catalog.digest)
        except NoSuchPlan as error:
            raise PlanUnknown(str(error)) from None
        seen = (in_force, self.progress.totals.revision, *(worker.revision for worker in self.workers))
        new = rolled_back(old, revision_after(*seen), now())
        await self._ports.sink.publish(new)  # the next look around finds it, and the session goes on from there
        return new

    @property
    def progress(self) -> Progress:
        """Position and totals."""
        return self._intake.progress if self._intake is not None else Progress()

    @property
    def plan(self) -> Plan | None:
        """The plan in force; None when there is no session yet."""
        return self._intake.session.plan if self._intake is not None else None

    async def _pause(self, error: Exception, pause: float) -> float:
        """Wait before the next attempt; the pause to take before the one after it."""
        self.problem = problem_of(error)
        self.turned_at = time.monotonic()
        self._ports.observer.failed(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), pause * random.uniform(0.5, 1.0))
        return min(pause * 2, LONGEST_PAUSE_S)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    async def _open(self) -> None:
        """(Re)connect: take up the progress, fill the window when it is empty, see to the plan in force."""
        resumed = self._intake is not None
        intake = self._intake or await self._resume()
        intake.progress.last_id = await self._ports.source.open(intake.progress.last_id)
        if not resumed:
            await self._refill(intake)
            self._intake = intake
        await self._commit(intake, everything=True)
        await self._look_around(intake)

    async def _resume(self) -> Intake:
        """A session that goes on from the plan in force and from the stored progress."""
        try:
            progress = Progress.from_fields(await self._ports.source.load())
        except ValueError as error:
            self._ports.observer.failed(error)
            progress = Progress()
        try:
            status = await self._ports.sink.current()
            plan = status.to_plan() if status is not None else Plan(0)
        except (PlanUnreadable, InvalidPlan) as error:
            self._ports.observer.failed(error)
            plan = Plan(0)
        in_force = plan.revision
        workers = await self._ports.heartbeats.workers()
        seen = newest(progress.totals.revision, *(worker.revision for worker in workers))
        if newer(seen, plan.revision):  # the plan that workers run is lost, and they refuse older ones
            plan = replace(plan, revision=seen)
        session = await self._in_thread(lambda: self._new_session(plan))
        intake = Intake(self.model, self.catalog, session, progress)
        decision = await self._in_thread(session.start)
        if decision is not None:
            self._note(decision)
        elif session.plan.revision != in_force:
            self._note(intake.renumber(seen))
        return intake

    async def _refill(self, intake: Intake) -> None:
        found: list[FeedbackBatch] = []
        async for page in self._ports.source.history(intake.progress.last_id):
            if await self._in_thread(functools.partial(intake.recall, page, found)):
                break
        await self._in_thread(lambda: intake.refill(found))

    async def _turn(self) -> None:
        """Read once and work off what came."""
        self.turned_at = time.monotonic()
        intake = self._intake
        assert intake is not None
        entries = deque(await self._read())
        while entries:
            took, search = await self._in_thread(lambda: self._work_off(intake, entries))
            if search is not None:  # begun at once, whatever comes of the decision: it is handed out once
                self._searching = asyncio.create_task(self._propose(intake, search))
            self._ports.observer.took(took)
            if took.decision is not None:
                await self._decided(took.decision, intake)
        waited_s, waiting = time.monotonic() - self._committed_at, len(intake.uncommitted)
        if waiting >= COMMIT_ENTRIES or (waiting and waited_s >= COMMIT_S):
            await self._commit(intake)
        if self._searching is not None and self._searching.done():
            searched, self._searching = self._searching, None
            await searched  # raises what the search raised
        if time.monotonic() - self._looked_at >= LOOK_AROUND_S:
            await self._look_around(intake)

    def _work_off(self, intake: Intake, entries: deque[Entry]) -> tuple[Took, Search | None]:
        """In the session's thread: entries up to a decision, and the search for other ramps that is wanted by then."""
        return intake.take(entries), intake.session.take_search() if self._searching is None else None

    async def _propose(self, intake: Intake, search: Search) -> None:
        found = await asyncio.get_running_loop().run_in_executor(self._search_thread, search.run)
        await self._in_thread(lambda: intake.session.propose(found))

    async def _read(self) -> list[Entry]:
        """The next entries; none when told to stop meanwhile."""
        self._reading = asyncio.ensure_future(self._ports.source.read())
        try:
            return await self._reading
        except asyncio.CancelledError:
            if not self._stopping.is_set():
                raise
            return []
        finally:
            self._reading = None

    async def _decided(self, decision: Decision, intake: Intake) -> None:
        self._note(decision)
        if decision.plan is not None:
            await self._publish(decision.plan, decision.reason, decision.message)

    def _note(self, decision: Decision) -> None:
        self.journal.note(decision)
        self._ports.observer.decided(decision)

    async def _publish(self, plan: Plan, reason: Reason, message: str) -> None:
        status = PlanStatus.of(plan, self.catalog.layers, reason=reason.value, message=message, decided_at=now())
        await self._ports.sink.publish(status)

    async def _commit(self, intake: Intake, *, everything: bool = False) -> None:
        """Ack what was worked off, together with progress: all of it when what Redis holds is not known."""
        self._committed_at = time.monotonic()
        progress = intake.progress
        changed, forgotten = progress.positions.changes()
        stored = progress.to_fields(None if everything else changed)
        ids = list(intake.uncommitted)
        await self._ports.source.commit(ids, stored, [progress.field_of(worker) for worker in forgotten])
        progress.positions.settled(changed, forgotten)
        for done in ids:
            intake.uncommitted.pop(done, None)

    async def _look_around(self, intake: Intake) -> None:
        """See who serves and what waits, and that the plan in force is the session's: it may have been lost."""
        self.workers = await self._ports.heartbeats.workers()
        self.backlog = await self._ports.source.backlog()
        await self._see_to_plan(intake)
        self._ports.observer.looked(intake.session, self.workers, self.backlog)
        self._looked_at = time.monotonic()

    async def _see_to_plan(self, intake: Intake) -> None:
        plan = intake.session.plan
        if plan.revision == 0:
            return
        try:
            current = await self._ports.sink.current()
        except PlanUnreadable:
            current = None
        seen = newest(intake.progress.totals.revision, *(worker.revision for worker in self.workers))
        if current is not None and newer(current.revision, plan.revision):
            raise PlanRefused(plan.revision, current.revision)
        if current is not None and current.revision == plan.revision and not newer(seen, plan.revision):
            return
        if (
            newer(seen, plan.revision) or seen == plan.revision
        ):  # lost, and workers that still run it take only a newer one
            await self._decided(await self._in_thread(lambda: intake.renumber(seen)), intake)
            return
        last = next((n for n in self.journal.newest_first() if n.revision == plan.revision), None)
        reason, message = (last.reason, last.message) if last else (Reason.STARTED, "published again")
        await self._publish(plan, reason, message)


def _give_way() -> None:
    """Lower the priority of the calling thread: a search for ramps can wait, answers on the same machine cannot."""
    with contextlib.suppress(OSError, AttributeError):  # not every system has priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), SEARCH_NICENESS)
