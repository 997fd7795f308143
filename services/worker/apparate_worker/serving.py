"""What the device does for one model: runs passes, lets answers go the moment a ramp allows, reports what happened."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from apparate.contract.resource import TensorSpec
from apparate.feedback import FINAL
from apparate.service.telemetry import Faults, get_logger
from apparate_worker.batching import Batcher
from apparate_worker.compact import PARTING_MS, Compact
from apparate_worker.engine import Engine, Output, Schedule
from apparate_worker.errors import InferenceFailed, WorkerError, words_of
from apparate_worker.guard import WorkerGuard
from apparate_worker.liveness import Health, is_fatal
from apparate_worker.passes import Flight, Parked, Pass
from apparate_worker.pending import Item, stack
from apparate_worker.pressure import Stage
from apparate_worker.release import scores

Array = npt.NDArray[Any]
PARKED_BATCHES = 16  # that answered rows may fill
OPEN_BATCHES = 32  # under way, some of their rows aside: so many answers, at most, the guard learns of late
TAIL_BATCHES = 2  # in one batch, once nobody waits for the answers: a row of 16 costs an eighth less than one of 8
# Parked rows wait for company in a quiet moment, as long as so many whole batches take, and at most so many seconds:
# by two and two they cost the device twice as much as by sixteen, a time that everybody else on the machine lacks.
COMPANY_PASSES, COMPANY_S = 2.0, 0.1
RESTED = 0.5  # of the time of a whole batch without work, and the device is no longer short of time
RAMPS_WHEN_SHED = 32  # one pass in so many keeps its ramps, so that feedback never ends
TIMED_EVERY = 32  # passes, of which the steps of one are timed
QUICK_S = 0.0005  # of a whole batch: a tenth of what the event loop may be late
PARKED_S = 1.0  # after which answered rows are taken on although the queue does not end, unless it is a crowd
DONE = object()
EMPTY: Array = np.zeros(0, np.int32)
log = get_logger(__name__)


class Reports(Protocol):
    """Where passes are reported; must not wait."""

    def wants_shadows(self, *, opened: bool) -> bool:
        """Whether the next pass keeps the pooled vectors of ramps that are switched off.

        opened: whether an exit has been open already, so that somebody has a faster answer to lose.
        """

    def offer(self, done: Pass) -> None:
        """Take the report of a pass."""


class Others(Protocol):
    """Everybody who may wait for the device."""

    def due(self) -> bool:
        """Whether a batch of any model would start at once."""

    def crowd(self, beside: object) -> bool:
        """Whether a whole batch of another model waits."""


class Serving:
    """One served model in the device thread; what other threads may call says so.

    remaining_ms(ramp, rows): time from a ramp's site to the end of the model, for so many rows.
    threads: of the CPU, for one pass.
    compact: what batches that the guard leaves unchecked are stopped and shrunk by.
    trial: inputs of a pass that shows whether a device that failed can go on.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        batcher: Batcher,
        inputs: Sequence[TensorSpec],
        schedule: Schedule,
        guard: WorkerGuard,
        reports: Reports,
        loop: asyncio.AbstractEventLoop,
        max_batch: int = 8,
        remaining_ms: Callable[[int, int], float] = lambda ramp, rows: float(rows),
        threads: int = 1,
        compact: Compact | None = None,
        trial: Mapping[str, Array] | None = None,
    ) -> None:
        self._engine, self.batcher, self._inputs, self._guard = engine, batcher, tuple(inputs), guard
        self._reports, self._loop, self.threads = reports, loop, threads
        self.others: Others | None = None
        """Who else waits for the device; the device thread's scheduler."""
        self.remembers = False
        """Whether requests want to know the model's own scores, too, when they have left early."""
        self.over = threading.Event()
        """Set when the batcher is closed and everything it gave has reached its end."""
        self.schedule = schedule
        """What the next pass runs under. Assigned from the event loop; read once at the start of each pass."""
        self.here = False
        """Whether the event loop itself runs this pass, so that answers need no way to it."""
        self.served = 0
        self.traced = False
        """Whether requests may be traced: the steps of their passes are timed."""
        self.health = Health()
        self._trial = trial
        self._faults = Faults(log)
        self._max_batch, self._tail_batch = max_batch, TAIL_BATCHES * max_batch
        self._remaining_ms = remaining_ms
        self._compact = compact or Compact(remaining_ms)
        self._shedding, self._shed, self._worked_at = False, 0, 0.0
        self._passes = 0
        self._opened = False
        """Whether a plan with open exits has been in force."""
        self._park_most, self._open_most = PARKED_BATCHES * max_batch, OPEN_BATCHES * max_batch
        self._under_way: set[Pass] = set()
        self._open = 0
        """Answers of the passes under way: the guard hears of a pass when its last row has reached the end."""
        self._parked = Parked(engine)

    @property
    def steps(self) -> int:
        """Segments that were run. Any thread."""
        return self._engine.steps

    @property
    def quick(self) -> bool:
        """Whether a pass takes at most QUICK_S, on a CPU, nothing stands aside, and no exit is open. Any thread."""
        return (
            self._engine.divides
            and self.threads == 1
            and not self.schedule.plan.exits_open
            and not self._parked.rows
            and not self.health.unwell
            and not self.batcher.policy.waits
            and self.batcher.pass_s <= QUICK_S
        )

    @property
    def guarded(self) -> bool:
        """Whether the guard's alarm has closed the exits."""
        return self._guard.guarded

    @property
    def spent(self) -> bool:
        """Whether exits are closed until the answers to come have earned them."""
        return self._guard.spent

    @property
    def parked(self) -> int:
        """Answered rows whose way to the end of the model waits for a quiet moment."""
        return self._parked.rows

    @property
    def tidy_s(self) -> float:
        """Seconds until the parked rows are worth a quiet moment, when nobody else parks; inf while there are none."""
        parked = self._parked
        if not parked.rows:
            return math.inf
        if parked.rows >= self._tail_batch:
            return 0.0
        return max(0.0, min(COMPANY_PASSES * self.batcher.pass_s, COMPANY_S) - parked.oldest_s)

    @property
    def overdue(self) -> bool:
        """Whether rows have been parked for too long, unless a crowd waits. There must be some."""
        return self._parked.oldest_s >= PARKED_S and not self._crowd() and not (self.others and self.others.crowd(self))

    def tidy(self, *, to_end: bool) -> None:
        """Take the oldest parked rows on, to the end, or until somebody waits for an answer. There must be some."""
        self._go_on(self._parked.take(self._tail_batch), to_end=to_end)
        self._worked_at = time.monotonic()

    def check(self) -> None:
        """See, when it is time, whether a device that failed can go on. Raises what means that it is lost."""
        if self.health.due():
            self._try()

    def serve(self, batch: list[Item], again: Pass | None = None) -> None:
        """Run a batch until every row has its answer.

        again: the pass that it was part of, when the model raised there; whether it is checked was drawn then.
        """
        schedule = self._relieved(self._guard.admit(self.schedule))
        one = Pass(batch, schedule.plan)
        if again is not None:
            one.share, one.whole = again.share, again.whole
        elif schedule.plan.exits_open:
            self._compact.draw(one, self._guard.share)
        self._under_way.add(one)
        self._open += len(batch)
        self._passes += 1
        if self._passes % TIMED_EVERY == 0 or (self.traced and any(item.request.trace is not None for item in batch)):
            one.timed = []
        try:
            inputs = stack(batch, self._inputs)
            one.input_s = time.monotonic() - one.started
            shadow = one.whole and one.timed is None and self._shadows(schedule)  # with shadows it stops at every ramp
            journey = self._engine.start(inputs, schedule, shadow=shadow)
            going: Flight | None = Flight(journey, [(one, list(range(len(batch))))])
            while going is not None:
                going = self._leg(going)
            self._worked_at = time.monotonic()
        except Exception as error:
            if is_fatal(error):
                raise
            self._failed(one, error)

    def _failed(self, one: Pass, error: Exception) -> None:
        """The model raised: run each unanswered item alone, so that only the bad one fails."""
        self._break([one])
        self.health.note(error)
        left = [one.items[row] for row in one.release.rest()]
        if len(one.items) == 1:
            self._faults("the model raised on a request", error)
            self._tell(fail, left, InferenceFailed(f"the model raised on this request: {words_of(error)}"))
            return
        for item in left:
            self.serve([item], one)

    def _try(self) -> None:
        if self._trial is None:
            return
        try:
            for _ in self._engine.run(self._engine.start(self._trial, self.schedule.without_ramps)):
                pass
            self.health.well()
        except Exception as error:
            if is_fatal(error):
                raise
            self._faults("the device fails", error)
            self.health.failed_again(error)

    def _relieved(self, schedule: Schedule) -> Schedule:
        """The schedule, without its ramps from when whole batches wait and nothing more can be put off, until the
        device has rested.

        Then answers wait for the queue, and every ramp and every batch in parts would lengthen it. Until then, rows
        that step aside let a burst through faster than the plain model would; what is no burst fills the room, or
        outlasts their patience. That no whole batch waits for a moment is no end of it: with what was put off still to
        do, each such moment would put off more. Ramps stay where most passes may stop at them. The few passes that keep
        theirs let nobody go: answers on the way would cost more than the ramps, and save what the queue hides.
        """
        crowd, parked = self._crowd(), self._parked
        if schedule.plan.exits_open and self._guard.samples:
            self._shedding = False
        elif crowd:
            put_off = not self._room(self._max_batch) or (parked.rows > 0 and parked.oldest_s >= PARKED_S)
            self._shedding = self._shedding or put_off
        elif self._shedding and parked.rows == 0:
            self._shedding = time.monotonic() - self._worked_at < RESTED * self.batcher.pass_s
        if crowd and not self._shedding and schedule.plan.exits_open:
            self.batcher.pressure.note(Stage.EXITS_FIRST)
        if not (self._shedding and schedule.active):
            return schedule
        self.batcher.pressure.note(Stage.RAMPS_OFF)
        self._shed += 1
        return schedule.closed if self._shed % RAMPS_WHEN_SHED == 0 else schedule.without_ramps

    def _due(self) -> bool:
        """Whether somebody waits for the device whose batch may start."""
        return self.batcher.due() if self.others is None else self.others.due()

    def _crowd(self) -> bool:
        """Whether whole batches wait. What stood aside, however long ago, would delay them all."""
        return self.batcher.waiting >= self._max_batch

    def _room(self, rows: int) -> bool:
        """Whether so many answered rows may step aside, and their pass stay open."""
        return self._parked.rows + rows <= self._park_most and self._open <= self._open_most

    def _shadows(self, schedule: Schedule) -> bool:
        """Whether a pass keeps what ramps that are switched off would read; none does that others wait behind.

        More do until an exit has been open, so that the first search for better ramps need not wait.
        """
        if not (schedule.inactive and schedule.active):
            return False
        self._opened = self._opened or self.schedule.plan.exits_open
        if self.batcher.waiting >= (1 if self._opened else self._max_batch):
            return False
        return self._reports.wants_shadows(opened=self._opened)

    def _leg(self, flight: Flight) -> Flight | None:
        """Take a flight on until its rows are all answered, or part; what goes on for an answer.

        Answered rows step aside wherever that makes the others faster: their answers have left, and the rest of their
        way, which is only for feedback, is cheaper together with others' in a quiet moment. When there is none, because
        those aside fill the room there is, the batch stays whole: in parts it would be more work. Where a batch stands
        for others that are not checked it stays whole too, so that the guard hears of it at once.
        """
        one = flight.parts[0][0]
        outputs, timed = self._engine.run(flight.journey, waits=not one.whole), one.timed
        for output in outputs if timed is None else _timing(outputs, timed):
            if output is None or not self._take(output, flight):
                continue
            if not one.whole and output.step.ramp != FINAL:
                left = self._compact.go_on(self._engine, flight, output.step.ramp)
                if left is None:
                    self._close(one)
                if left is not flight:
                    return left
                continue
            if not self._engine.divides:
                continue
            waiting = flight.waiting()
            if self._shedding or self._guard.samples or not self._room(flight.rows):
                continue
            if not waiting:
                if output.step.ramp != FINAL:
                    self._parked.add(flight)
                return None
            ramp, rows = output.step.ramp, flight.rows
            if self._remaining_ms(ramp, rows) - self._remaining_ms(ramp, len(waiting)) >= PARTING_MS:
                flight, stay = flight.divide(self._engine, waiting)
                self._parked.add(stay)
                return flight
        return None

    def _go_on(self, flights: list[Flight], *, to_end: bool) -> None:
        """Take flights of answered rows on as one, to the end, or until somebody waits for an answer."""
        try:
            flight = Flight.together(self._engine, flights)
            outputs = self._engine.run(flight.journey, pauses=True)
            while (output := next(outputs, DONE)) is not DONE:
                if isinstance(output, Output):
                    self._take(output, flight)
                    continue
                if not to_end and self._due():
                    self._parked.add(flight)
                    return
                flights = self._parked.joining(flight, self._tail_batch)
                if len(flights) > 1:
                    flight = Flight.together(self._engine, flights)
                    outputs = self._engine.run(flight.journey, pauses=True)
        except Exception as error:
            if is_fatal(error):
                raise
            self.health.note(error)
            self._faults("the model raised on requests that were answered", error)
            self._break([one for flight in flights for one, _ in flight.parts])

    def _take(self, output: Output, flight: Flight) -> bool:
        """Note what one step said, and let answers go; whether any went."""
        step, values = output.step, output.values
        final = step.ramp == FINAL
        errors, labels = EMPTY, EMPTY
        if final:
            labels = values.argmax(axis=1).astype(np.int32)
        elif step.active:
            errors, labels = scores(values)
        place, went = 0, False
        for one, rows in flight.parts:
            here = slice(place, place + len(rows))
            place += len(rows)
            if final:
                one.finish(rows, labels[here])
                leave = one.release.rest(rows)
                if self.remembers:
                    own = [(one.items[row], final_scores) for row, final_scores in zip(rows, values[here], strict=True)]
                    self._tell(_remember, own)
            elif step.active:
                one.note(one.errors, step.ramp, rows, errors[here])
                one.note(one.labels, step.ramp, rows, labels[here])
                leave = one.release.at(step.ramp, errors[here], step.threshold, rows)
            else:
                one.note(one.pooled, step.ramp, rows, values[here])
                continue
            if leave:
                went = True
                self._let_go(one, rows, leave, values[here], labels[here], step.ramp)
            if final and not one.left and not one.broken:
                self._close(one)
        return went

    def _let_go(
        self, one: Pass, rows: Sequence[int], leave: Sequence[int], values: Array, labels: Array, ramp: int
    ) -> None:
        at = {row: i for i, row in enumerate(rows)}
        answers = [(one.items[row], values[at[row]], labels[at[row]]) for row in leave]
        self._tell(_answer, answers, ramp, one.plan.revision)
        now = time.monotonic()
        for row in leave:
            one.released_at[row] = now

    def _close(self, done: Pass) -> None:
        """When no row is on its way any more: the guard, then the report."""
        wrong = done.close()
        self._settled(done)
        if not done.whole:
            self._guard.unchecked(len(done.release.counting))
        elif done.labels:
            alarms = self._guard.alarms
            self._guard.observe(wrong, done.share)
            done.guarded = self._guard.guarded
            if self._guard.alarms != alarms:
                log.warning("guard closed the exits", revision=done.plan.revision)
        else:
            self._guard.served_plain(len(done.items))
        self.served += len(done.items)
        self._reports.offer(done)

    def _break(self, passes: Sequence[Pass]) -> None:
        """Give up passes that the model raised on. Early answers that nobody can check count as wrong."""
        for one in passes:
            if not one.broken:
                one.broken = True
                self._settled(one)
                if one.whole:
                    self._guard.observe([one.release.exits[row] != FINAL for row in one.release.order], one.share)
        self._parked.forget_broken()

    def _settled(self, one: Pass) -> None:
        if one in self._under_way:
            self._under_way.remove(one)
            self._open -= len(one.items)

    def _tell(self, call: Callable[..., None], *args: Any) -> None:
        """Have the event loop run `call`. Once the loop is closed nobody waits for an answer any more."""
        if self.here:
            call(*args)
            return
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            log.warning("an answer came after the event loop had closed")


def _timing(outputs: Iterator[Output | None], into: list[tuple[int, float]]) -> Iterator[Output | None]:
    """The outputs, with how long each took to come."""
    began = time.perf_counter()
    for output in outputs:
        if output is not None:
            into.append((output.step.ramp, time.perf_counter() - began))
        yield output
        began = time.perf_counter()


def _remember(finals: Sequence[tuple[Item, Array]]) -> None:
    for item, own in finals:
        if item.request.remember is not None:
            item.request.remember(item.index, own)


def _answer(answers: Sequence[tuple[Item, Array, int]], ramp: int, revision: int) -> None:
    for item, values, label in answers:
        item.request.answer(item.index, values, label, ramp, revision)


def fail(items: Sequence[Item], error: WorkerError) -> None:
    """Requests get an error for an answer. Event loop only."""
    for item in items:
        item.request.fail(error)
