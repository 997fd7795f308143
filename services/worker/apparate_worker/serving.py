"""The device thread: takes batches, runs passes, lets answers go the moment a ramp allows, reports what happened."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from apparate.contract.resource import TensorSpec
from apparate.feedback import FINAL
from apparate.service.telemetry import Faults, get_logger
from apparate_worker.batching import Batcher, Item, stack
from apparate_worker.engine import Engine, Output, Schedule
from apparate_worker.errors import InferenceFailed, NotReady, WorkerError, words_of
from apparate_worker.guard import WorkerGuard
from apparate_worker.liveness import Health, is_fatal, stack_of
from apparate_worker.passes import Flight, Parked, Pass
from apparate_worker.release import scores

Array = npt.NDArray[Any]
PARKED_BATCHES = 16  # that answered rows may fill
OPEN_BATCHES = 32  # under way, some of their rows aside: so many answers, at most, the guard learns of late
TAIL_BATCHES = 2  # in one batch, once nobody waits for the answers: a row of 16 costs an eighth less than one of 8
PARTING_MS = 0.15  # that it costs to part rows and to join them with others later
RAMPS_WHEN_SHED = 16  # one pass in so many keeps its ramps, so that feedback never ends
TIMED_EVERY = 32  # passes, of which the steps of one are timed
PARKED_S = 1.0  # after which answered rows are taken on although the queue does not end, unless it is a crowd
DONE = object()
EMPTY: Array = np.zeros(0, np.int32)
IDLE_TICK_S = 0.5  # how often an idle device thread shows that it turns
log = get_logger(__name__)


class Reports(Protocol):
    """Where passes are reported; must not wait."""

    def wants_shadows(self, *, opened: bool) -> bool:
        """Whether the next pass keeps the pooled vectors of ramps that are switched off.

        opened: whether an exit has been open already, so that somebody has a faster answer to lose.
        """

    def offer(self, done: Pass) -> None:
        """Take the report of a pass."""


class DeviceThread:
    """Owns the device: every torch call of serving happens in its one thread.

    remaining_ms(ramp, rows): time from a ramp's site to the end of the model, for so many rows.
    trial: inputs of a pass that shows whether a device that failed can go on.
    on_fatal is called, in that thread, when the device is lost; the thread has then ended.
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
        trial: Mapping[str, Array] | None = None,
        on_fatal: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._engine, self._batcher, self._inputs, self._guard = engine, batcher, tuple(inputs), guard
        self._reports, self._loop, self._threads, self._on_fatal = reports, loop, threads, on_fatal
        self.schedule = schedule
        """What the next pass runs under. Assigned from the event loop; read once at the start of each pass."""
        self._turns = 0
        self.served = 0
        self.health = Health()
        self._trial = trial
        self._faults = Faults(log)
        self._lost = False
        self._max_batch, self._tail_batch = max_batch, TAIL_BATCHES * max_batch
        self._remaining_ms = remaining_ms
        self._shedding, self._shed = False, 0
        self._passes = 0
        self._opened = False
        """Whether a plan with open exits has been in force."""
        self._park_most, self._open_most = PARKED_BATCHES * max_batch, OPEN_BATCHES * max_batch
        self._under_way: set[Pass] = set()
        self._open = 0
        """Answers of the passes under way: the guard hears of a pass when its last row has reached the end."""
        self._parked = Parked(engine)
        self._in_hand: Sequence[Item] = ()
        self._thread = threading.Thread(target=self._main, name="device", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and has its device."""
        return self._thread.is_alive() and not self._lost

    @property
    def beats(self) -> int:
        """A count that goes on while the thread and the device turn."""
        return self._turns + self._engine.steps

    def give_up(self, error: WorkerError) -> None:
        """Take the device for lost in the middle of a pass: what is in hand gets `error`. Event loop only."""
        log.error("device lost", error=str(error), stack=stack_of(self._thread))
        self._lost = True
        self._fail(self._in_hand, error)

    @property
    def guarded(self) -> bool:
        """Whether the guard's alarm has closed the exits."""
        return self._guard.guarded

    @property
    def spent(self) -> bool:
        """Whether exits are closed until the answers to come have earned them."""
        return self._guard.spent

    async def ended(self, within_s: float) -> bool:
        """Wait for the pass that runs, once the batcher is closed; whether the thread ended within the time."""
        await asyncio.to_thread(self._thread.join, within_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        torch.set_num_threads(self._threads)  # a setting of the calling thread
        np.seterr(all="ignore")  # inputs may hold anything; what is not a number never exits
        try:
            with torch.inference_mode():
                while self._turn():
                    self._turns += 1
                while self._parked.rows:
                    self._go_on(self._parked.take(self._tail_batch), to_end=True)
        except BaseException as error:
            self._lost = True
            log.error("device lost", error=str(error), exc_info=error)
            self._tell(self._fail, self._in_hand, NotReady(f"the worker lost its device: {error}"))
            self._on_fatal(error)

    def _turn(self) -> bool:
        """Serve the next batch, or take parked rows on when nobody waits or too many are parked; False: closed."""
        batch = self._batcher.take(0.0 if self._parked.rows else IDLE_TICK_S)
        if batch is None:
            return False
        if batch:
            self._in_hand = batch
            self._serve(batch)
            self._in_hand = ()
        if self.health.due():
            self._try()
        parked = self._parked
        if parked.rows and not batch:
            self._go_on(parked.take(self._tail_batch), to_end=False)
        elif parked.rows and parked.oldest_s >= PARKED_S and not self._crowd():
            self._go_on(parked.take(self._tail_batch), to_end=True)
        return True

    def _serve(self, batch: list[Item]) -> None:
        """Run a batch until every row has its answer."""
        schedule = self._relieved(self._guard.admit(self.schedule))
        one = Pass(batch, schedule.plan)
        self._under_way.add(one)
        self._open += len(batch)
        self._passes += 1
        if self._passes % TIMED_EVERY == 0:
            one.timed = []
        try:
            journey = self._engine.start(stack(batch, self._inputs), schedule, shadow=self._shadows(schedule))
            going: Flight | None = Flight(journey, [(one, list(range(len(batch))))])
            while going is not None:
                going = self._leg(going)
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
            self._tell(self._fail, left, InferenceFailed(f"the model raised on this request: {words_of(error)}"))
            return
        for item in left:
            self._serve([item])

    def _try(self) -> None:
        """See whether a device that failed can go on. Raises what means that it is lost."""
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
        """The schedule, without its ramps while whole batches wait and nothing more can be put off.

        Then answers wait for the queue, and every ramp would lengthen it. Until then, rows that step aside let a burst
        through faster than the plain model would; what is no burst fills the room, or outlasts their patience.
        """
        parked = self._parked
        put_off = not self._room(self._max_batch) or (parked.rows > 0 and parked.oldest_s >= PARKED_S)
        self._shedding = self._crowd() and (self._shedding or put_off)
        if not (self._shedding and schedule.active):
            return schedule
        self._shed += 1
        return schedule if self._shed % RAMPS_WHEN_SHED == 0 else schedule.without_ramps

    def _crowd(self) -> bool:
        """Whether whole batches wait. What stood aside, however long ago, would delay them all."""
        return self._batcher.waiting >= self._max_batch

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
        if self._batcher.waiting >= (1 if self._opened else self._max_batch):
            return False
        return self._reports.wants_shadows(opened=self._opened)

    def _leg(self, flight: Flight) -> Flight | None:
        """Take a flight on until its rows are all answered, or part; what goes on for an answer.

        Answered rows step aside wherever that makes the others faster: their answers have left, and the rest of their
        way, which is only for feedback, is cheaper together with others' in a quiet moment. When there is none, because
        those aside fill the room there is, the batch stays whole: in parts it would be more work.
        """
        outputs, timed = self._engine.run(flight.journey), flight.parts[0][0].timed
        for output in outputs if timed is None else _timing(outputs, timed):
            if output is None or not self._take(output, flight) or not self._engine.divides:
                continue
            waiting = flight.waiting()
            if self._shedding or not self._room(flight.rows):
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
                if not to_end and self._batcher.due():
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
        """After the last row has reached the end: the guard, then the report."""
        wrong = done.close()
        self._settled(done)
        if done.labels:
            alarms = self._guard.alarms
            self._guard.observe(wrong)
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
                self._guard.observe([one.release.exits[row] != FINAL for row in one.release.order])
        self._parked.forget_broken()

    def _settled(self, one: Pass) -> None:
        if one in self._under_way:
            self._under_way.remove(one)
            self._open -= len(one.items)

    @staticmethod
    def _fail(items: Sequence[Item], error: WorkerError) -> None:
        for item in items:
            item.request.fail(error)

    def _tell(self, call: Callable[..., None], *args: Any) -> None:
        """Have the event loop run `call`. Once the loop is closed nobody waits for an answer any more."""
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


def _answer(answers: Sequence[tuple[Item, Array, int]], ramp: int, revision: int) -> None:
    for item, values, label in answers:
        item.request.answer(item.index, values, label, ramp, revision)
