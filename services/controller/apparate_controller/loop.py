"""One model's control loop: feedback from its source, through the session, to the plan sink; ack after the sink."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from apparate.adaptation.policy import Decision, Observed, Reason, Search
from apparate.catalog import RampCatalog
from apparate.contract.pause import Pause, held
from apparate.contract.resource import PlanStatus
from apparate.contract.rollback import NoSuchPlan, earlier, rolled_back
from apparate.feedback import FeedbackBatch
from apparate.plan import InvalidPlan, Plan, newer, newest, revision_after
from apparate.service.redis_client import UNREACHABLE
from apparate_controller.errors import PlanRefused, PlanUnknown, PlanUnreadable, problem_of
from apparate_controller.intake import Intake, Session, Took
from apparate_controller.journal import Journal, now
from apparate_controller.latencies import Latencies
from apparate_controller.noting import Noting
from apparate_controller.ports import Ports
from apparate_controller.progress import Progress
from apparate_controller.searching import Searching
from apparate_controller.sources.heartbeats import WorkerState
from apparate_controller.sources.redis_stream import Backlog, Entry

LOOK_AROUND_S = 1.0  # workers, backlog and the plan in force are looked at this often
COMMIT_S = 0.25  # between acks; each is a transaction, and what is not acked is only read again after a crash
COMMIT_ENTRIES = 500  # unacked at most, or so: Redis keeps each in memory once more
OBSERVING_SHARE = 20  # what the window says is looked at again after so many times as long as it took: 5 % at most
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0  # between attempts to reach Redis; recovery takes no longer than the longest

T = TypeVar("T")


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
        self._noting = Noting(self.journal, ports.observer)
        self._said = Pause()
        self._new_session, self._ports = new_session, ports
        self._intake: Intake | None = None
        self._anew = True
        """Whether the intake is missing, or is shown only until there is another: the plan in force is not its own."""
        self._turning = asyncio.Lock()
        """Held while the session, the plan in force or what is kept changes."""
        self._looked_at = self._committed_at = 0.0
        self._observed_of: tuple[int, int] | None = None
        self._observe_at = 0.0
        self._stopping = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"session {model}")
        self._searching = Searching(model)
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
                    self._anew = True  # another plan is in force: go on from that one
                    pause = await self._pause(error, pause)
                except Exception as error:  # noqa: BLE001 - outermost loop: told by the observer, then tried again
                    pause = await self._pause(error, pause)
            if self._intake is not None and not self._anew:
                with contextlib.suppress(Exception):  # not stored: read again by whoever comes next
                    await self._commit(self._intake)
        finally:
            await self._searching.end()
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

    async def roll_back(self, revision: int, by: str = "") -> PlanStatus:
        """Put an earlier plan in force again under a new revision, as `by` asks; adaptation goes on from it.

        Raises PlanUnknown when it is not in the history or is of another catalog, and PlanRefused.
        """
        async with self._turning:
            current = await self._ports.sink.current()
            in_force = current.revision if current else 0
            try:
                old = earlier(await self.history(), revision, in_force=in_force, catalog=self.catalog.digest)
            except NoSuchPlan as error:
                raise PlanUnknown(str(error)) from None
            seen = (in_force, self.progress.totals.revision, *(worker.revision for worker in self.workers))
            new = rolled_back(old, revision_after(*seen), now(), by)
            await self._ports.sink.publish(new)
            if self._intake is not None and not self._anew:  # else it is found when the session is made
                await self._take_up(new, self._intake, by)
            await self._keep()
        return new

    @property
    def observed(self) -> Observed:
        """What the window says of the plan in force, a second old at most where feedback comes."""
        return self._noting.observed

    @property
    def pause(self) -> Pause:
        """Whether adaptation stands still, since when and at whose word."""
        return held(self.journal.pause, self._said)

    def follow(self, said: Pause) -> None:
        """Have the document's word on pausing hold, where it is a new one, before anything else is decided."""
        self._said = said

    async def hold(self, paused: bool, by: str) -> Pause:
        """Have adaptation stand still, or go on, as `by` asks, until the document says something else than now."""
        async with self._turning:
            self.journal.pause, before = Pause(paused, now(), by, self._said.paused), self.pause
            if paused != before.paused:
                await self._carry_out(self.journal.pause)
            await self._keep()
        return self.pause

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
        async with self._turning:
            intake = await self._resume() if self._intake is None or self._anew else self._intake
            intake.progress.last_id = await self._ports.source.open(intake.progress.last_id)
            if intake is not self._intake:
                await self._refill(intake)
                self._intake, self._anew, self._observed_of = intake, False, None
            await self._commit(intake, everything=True)
            await self._look_around(intake)

    async def _resume(self) -> Intake:
        """A session that goes on from the plan in force, and from the progress and the decisions that are stored."""
        stored = await self._ports.source.load()
        try:
            progress = Progress.from_fields(stored)
        except ValueError as error:
            self._ports.observer.failed(error)
            progress = Progress()
        try:
            status = await self._ports.sink.current()
            plan = status.to_plan() if status is not None else Plan(0)
        except (PlanUnreadable, InvalidPlan) as error:
            self._ports.observer.failed(error)
            status, plan = None, Plan(0)
        await self._recall(stored, status)
        in_force = plan.revision
        workers = await self._ports.heartbeats.workers()
        seen = newest(progress.totals.revision, *(worker.revision for worker in workers))
        if newer(seen, plan.revision):  # the plan that workers run is lost, and they refuse older ones
            plan = replace(plan, revision=seen)
        session = await self._in_thread(lambda: self._new_session(plan))
        intake = Intake(self.model, self.catalog, session, progress)
        pause, changed = self.journal.hold(self._said)
        session.paused = pause.paused
        decision = await self._in_thread(session.start)
        if decision is not None:
            self._noting.decision(decision)
        elif session.plan.revision != in_force:
            self._noting.decision(intake.renumber(seen))
        if changed:
            self._noting.pause(pause, session.plan.revision)
        return intake

    async def _recall(self, stored: Mapping[str, str], in_force: PlanStatus | None) -> None:
        """Take up the decisions of the process before this one, and of plans that it does not know of."""
        self.journal.restore(stored)
        plans = [in_force] if in_force is not None else []
        if not self.journal.newest_first():  # of a version that kept none, or lost: the plans tell as much
            plans = [*reversed(await self.history()), *plans]
        self._noting.plans(plans)

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
        async with self._turning:
            await self._settle_pause(intake)
            while entries:
                await self._take(entries, intake)
            waited_s, waiting = time.monotonic() - self._committed_at, len(intake.uncommitted)
            if waiting >= COMMIT_ENTRIES or (waited_s >= COMMIT_S and (waiting or any(self.journal.changes()))):
                await self._commit(intake)
            await self._searching.settle()
            if time.monotonic() - self._looked_at >= LOOK_AROUND_S:
                await self._look_around(intake)

    async def _take(self, entries: deque[Entry], intake: Intake) -> None:
        """Work entries off, up to and with one that decides something."""
        took, search = await self._in_thread(lambda: self._work_off(intake, entries))
        if search is not None:  # begun at once, whatever comes of the decision: it is handed out once
            session = intake.session
            self._searching.begin(search, lambda found: self._in_thread(lambda: session.propose(found)))
        self._ports.observer.took(took)
        if took.decision is not None:
            await self._decided(took.decision)
        if took.ahead:  # of somebody's plan that is in force, or of one that was lost
            await self._see_to_plan(intake)
            if newer(took.ahead, intake.session.plan.revision):
                await self._decided(await self._in_thread(lambda: intake.renumber(took.ahead)))

    def _work_off(self, intake: Intake, entries: deque[Entry]) -> tuple[Took, Search | None]:
        """In the session's thread: entries up to a decision, and the search for other ramps that is wanted by then."""
        return intake.take(entries), intake.session.take_search() if self._searching.idle else None

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

    async def _decided(self, decision: Decision) -> None:
        self._noting.decision(decision)
        if decision.plan is not None:
            try:
                await self._publish(decision.plan, decision.reason, decision.message)
            except PlanRefused:
                self.journal.withdraw(decision.plan.revision)  # another plan has that number
                raise

    async def _take_up(self, status: PlanStatus, intake: Intake, by: str = "") -> bool:
        """Go on from a plan that somebody else put in force; False when that takes a new session."""
        try:
            plan = status.to_plan()
        except InvalidPlan:
            return False
        taken = await self._in_thread(lambda: intake.session.take_up(plan))
        if taken:
            self._noting.plans([status], by)
        return taken

    async def _settle_pause(self, intake: Intake) -> None:
        """Have the session stand still or go on, as the document says by now."""
        pause, changed = self.journal.hold(self._said)
        if changed:
            await self._carry_out(pause)

    async def _carry_out(self, pause: Pause) -> None:
        """Have the session, when there is one, stand still or go on."""
        intake = self._intake
        if intake is not None and not self._anew:  # else the next session begins so
            await self._in_thread(lambda: setattr(intake.session, "paused", pause.paused))
        self._noting.pause(pause, self.plan.revision if self.plan is not None else 0)

    async def _publish(self, plan: Plan, reason: str, message: str) -> None:
        status = PlanStatus.of(plan, self.catalog.layers, reason=str(reason), message=message, decided_at=now())
        await self._ports.sink.publish(status)

    async def _commit(self, intake: Intake, *, everything: bool = False) -> None:
        """Ack what was worked off, together with progress: all of it when what Redis holds is not known."""
        self._committed_at = time.monotonic()
        progress = intake.progress
        changed, forgotten = progress.positions.changes()
        noted, outdated = self.journal.changes(everything=everything)
        stored = progress.to_fields(None if everything else changed) | noted
        ids = list(intake.uncommitted)
        gone = [*(progress.field_of(worker) for worker in forgotten), *outdated]
        await self._ports.source.commit(ids, stored, gone)
        progress.positions.settled(changed, forgotten)
        self.journal.settled(noted, outdated)
        for done in ids:
            intake.uncommitted.pop(done, None)

    async def _keep(self) -> None:
        """Store at once what somebody asked for; where that fails it is stored with the next progress."""
        if self._intake is not None and not self._anew:
            with contextlib.suppress(*UNREACHABLE):
                await self._commit(self._intake)

    async def _look_around(self, intake: Intake) -> None:
        """See who serves and what waits, and that the plan in force is the session's: it may have been lost."""
        self.workers = await self._ports.heartbeats.workers()
        self.backlog = await self._ports.source.backlog()
        await self._see_to_plan(intake)
        await self._observe(intake)
        self._ports.observer.looked(intake.session, self.workers, self.backlog)
        self._looked_at = time.monotonic()

    async def _observe(self, intake: Intake) -> None:
        """See what the window says of the plan in force, if either is another; less often where that takes long."""
        basis, started = (intake.session.window.added, intake.session.plan.revision), time.monotonic()
        if basis == self._observed_of or started < self._observe_at:
            return
        self._noting.observed, self._observed_of = await self._in_thread(intake.session.observe), basis
        ended = time.monotonic()
        self._observe_at = ended + OBSERVING_SHARE * (ended - started)

    async def _see_to_plan(self, intake: Intake) -> None:
        """See that the plan in force is the session's, and above what workers have run.

        One that somebody else put in force is gone on from. Raises PlanRefused when that takes a new session.
        """
        plan = intake.session.plan
        if plan.revision == 0:
            return
        try:
            current = await self._ports.sink.current()
        except PlanUnreadable:
            current = None
        if current is not None and newer(current.revision, plan.revision):
            if not await self._take_up(current, intake):
                raise PlanRefused(plan.revision, current.revision)
            plan = intake.session.plan
        ran = newest(intake.progress.totals.revision, *(worker.revision for worker in self.workers))
        if current is not None and current.revision == plan.revision and not newer(ran, plan.revision):
            return
        if newer(ran, plan.revision) or ran == plan.revision:  # lost, and workers that still run it take only a newer
            await self._decided(await self._in_thread(lambda: intake.renumber(ran)))
            return
        last = next((one for one in self.journal.newest_first() if one.revision == plan.revision), None)
        reason, message = (last.reason, last.message) if last else (Reason.STARTED, "published again")
        await self._publish(plan, reason, message)
