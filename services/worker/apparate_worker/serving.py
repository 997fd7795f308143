"""The device thread: takes batches, runs passes, lets answers go the moment a ramp allows, reports what happened."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from apparate.contract.resource import TensorSpec
from apparate.feedback import FINAL
from apparate.plan import Plan
from apparate.service.telemetry import get_logger
from apparate_worker.batching import Batcher, Item, stack
from apparate_worker.engine import Engine, Output, Schedule
from apparate_worker.errors import InferenceFailed, NotReady, WorkerError
from apparate_worker.guard import WorkerGuard
from apparate_worker.release import Release, scores

Array = npt.NDArray[Any]
IDLE_TICK_S = 0.5  # how often an idle device thread shows that it turns
log = get_logger(__name__)


@dataclass(slots=True)
class Pass:
    """What one pass did, for feedback and metrics. Arrays have one row for each request, in batch order."""

    plan: Plan
    started_at: float
    """Wall time, seconds."""
    queued_s: npt.NDArray[np.float64]
    errors: dict[int, Array] = field(default_factory=dict)
    """[N] error score by active ramp, also past the exit."""
    labels: dict[int, Array] = field(default_factory=dict)
    pooled: dict[int, Array] = field(default_factory=dict)
    """[N, F] by ramp that is switched off; only in passes with shadows."""
    final_labels: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    exits: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    released_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    """Arrival to release."""
    service_s: float = 0.0
    guarded: bool = False


class Reports(Protocol):
    """Where passes are reported; must not wait."""

    def wants_shadows(self) -> bool:
        """Whether the next pass keeps the pooled vectors of ramps that are switched off."""

    def offer(self, done: Pass) -> None:
        """Take the report of a pass."""


def is_fatal(error: BaseException) -> bool:
    """Whether the device is lost: after a CUDA error every later call fails too, so the process must be replaced."""
    accelerator = getattr(torch, "AcceleratorError", None)
    return (accelerator is not None and isinstance(error, accelerator)) or "CUDA error" in str(error)


class DeviceThread:
    """Owns the device: every torch call of serving happens in its one thread.

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
        threads: int = 1,
        on_fatal: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._engine, self._batcher, self._inputs, self._guard = engine, batcher, tuple(inputs), guard
        self._reports, self._loop, self._threads, self._on_fatal = reports, loop, threads, on_fatal
        self.schedule = schedule
        """What the next pass runs under. Assigned from the event loop; read once at the start of each pass."""
        self.beat = time.monotonic()
        """When the thread last showed that it turns."""
        self.served = 0
        self._lost = False
        self._thread = threading.Thread(target=self._main, name="device", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs and has its device."""
        return self._thread.is_alive() and not self._lost

    @property
    def guarded(self) -> bool:
        """Whether the guard's alarm has closed the exits."""
        return self._guard.guarded

    async def ended(self, within_s: float) -> bool:
        """Wait for the pass that runs, once the batcher is closed; whether the thread ended within the time."""
        await asyncio.to_thread(self._thread.join, within_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        torch.set_num_threads(self._threads)  # a setting of the calling thread
        np.seterr(all="ignore")  # inputs may hold anything; what is not a number never exits
        batch: list[Item] | None = []
        try:
            with torch.inference_mode():
                while batch is not None:
                    self.beat = time.monotonic()
                    batch = self._batcher.take(IDLE_TICK_S)
                    if batch:
                        self._serve(batch)
        except BaseException as error:
            self._lost = True
            log.error("device lost", error=str(error), exc_info=error)
            self._tell(self._fail, batch or [], NotReady(f"the worker lost its device: {error}"))
            self._on_fatal(error)

    def _serve(self, batch: list[Item]) -> None:
        """Run a batch; when the model raises, run each unanswered item alone, so that only the bad one fails."""
        release = Release(len(batch))
        try:
            self._run(batch, release)
        except Exception as error:
            if is_fatal(error):
                raise
            left = [batch[row] for row in release.rest()]
            if len(batch) == 1:
                log.warning("the model raised on a request", error=str(error), exc_info=error)
                self._tell(self._fail, left, InferenceFailed(f"the model raised on this request: {error}"))
                return
            for item in left:
                self.beat = time.monotonic()
                self._serve([item])

    def _run(self, batch: list[Item], release: Release) -> None:
        schedule = self._guard.admit(self.schedule)
        shadow = bool(schedule.inactive) and self._reports.wants_shadows()
        started = time.monotonic()
        arrived = np.array([item.request.arrived for item in batch])
        done = Pass(schedule.plan, time.time(), started - arrived)
        released_at = [0.0] * len(batch)
        revision = schedule.plan.revision
        for output in self._engine.run(stack(batch, self._inputs), schedule, shadow=shadow):
            rows = self._take(output, done, release)
            if rows:
                labels = done.final_labels if output.step.ramp == FINAL else done.labels[output.step.ramp]
                self._tell(_answer, batch, rows, output.values, labels, output.step.ramp, revision)
                now = time.monotonic()
                for row in rows:
                    released_at[row] = now
        done.service_s = time.monotonic() - started
        done.released_s, done.exits = np.array(released_at) - arrived, np.array(release.exits, np.int32)
        self._close(done, release.exits, release.order)

    @staticmethod
    def _take(output: Output, done: Pass, release: Release) -> list[int]:
        """Note what one step said; the rows whose answer it is."""
        ramp = output.step.ramp
        if not output.step.active:
            done.pooled[ramp] = output.values
            return []
        if ramp == FINAL:
            done.final_labels = output.values.argmax(axis=1).astype(np.int32)
            return release.rest()
        errors, labels = scores(output.values)
        done.errors[ramp], done.labels[ramp] = errors, labels
        return release.at(ramp, errors, output.step.threshold)

    def _close(self, done: Pass, exits: Sequence[int], order: Sequence[int]) -> None:
        """After the last answer has left: the guard, then the report."""
        if done.labels:
            said, final = done.labels, done.final_labels
            wrong = [exits[row] != FINAL and bool(said[exits[row]][row] != final[row]) for row in order]
            alarms = self._guard.alarms
            self._guard.observe(wrong)
            done.guarded = self._guard.guarded
            if self._guard.alarms != alarms:
                log.warning("guard closed the exits", revision=done.plan.revision)
        else:
            self._guard.served_plain(len(exits))
        self.served += len(exits)
        self._reports.offer(done)

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


def _answer(batch: Sequence[Item], rows: Sequence[int], values: Array, labels: Array, ramp: int, revision: int) -> None:
    for row in rows:
        item = batch[row]
        item.request.answer(item.index, values[row], labels[row], ramp, revision)
