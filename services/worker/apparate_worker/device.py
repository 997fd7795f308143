"""The device thread: every torch call of serving happens in it, whatever models there are.

But for passes that take less time than the way to this thread and back; see `shortway`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from apparate.service.telemetry import get_logger
from apparate_worker.errors import NotReady, WorkerError
from apparate_worker.liveness import stack_of
from apparate_worker.pending import Item
from apparate_worker.scheduler import Rule, Scheduler, choose
from apparate_worker.serving import Serving, fail
from apparate_worker.shortway import ShortWay

IDLE_TICK_S = 0.5  # how often an idle device thread shows that it turns
log = get_logger(__name__)


class DeviceThread:
    """Owns the device. Models come with `add`; one ends when its batcher is closed, and `Serving.over` is set then.

    on_fatal is called, in that thread, when the device is lost; the thread has then ended.
    """

    def __init__(
        self,
        servings: Sequence[Serving] = (),
        *,
        loop: asyncio.AbstractEventLoop,
        on_fatal: Callable[[BaseException], None] = lambda _: None,
        rule: Rule = choose,
    ) -> None:
        self._scheduler: Scheduler[Serving] = Scheduler(rule=rule)
        self._loop, self._on_fatal = loop, on_fatal
        self._turns = self._steps_before = self._threads = 0
        self._lost = self._stopping = False
        self._in_hand: Sequence[Item] = ()
        self._device = threading.Lock()
        """Whose turn it is on the device: this thread, or the event loop on its short way."""
        self._short_way = ShortWay(loop, self._scheduler, self.run_here)
        self._thread = threading.Thread(target=self._main, name="device", daemon=True)
        for one in servings:
            self.add(one)

    def add(self, serving: Serving) -> None:
        """Serve this model from now on. Before anything is put into its batcher."""
        serving.others = self._scheduler
        serving.batcher.short_way = self._short_way
        self._scheduler.add(serving)

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
        return self._turns + self._steps_before + sum(one.steps for one in self._scheduler.servings)

    def give_up(self, error: WorkerError) -> None:
        """Take the device for lost in the middle of a pass: what is in hand gets `error`. Event loop only."""
        log.error("device lost", error=str(error), stack=stack_of(self._thread))
        self._lost = True
        fail(self._in_hand, error)

    async def ended(self, within_s: float) -> bool:
        """Wait for the pass that runs, once every batcher is closed; whether the thread ended within the time."""
        with self._scheduler.changed:
            self._stopping = True
            self._scheduler.changed.notify()
        await asyncio.to_thread(self._thread.join, within_s)
        return not self._thread.is_alive()

    def _main(self) -> None:
        np.seterr(all="ignore")  # inputs may hold anything; what is not a number never exits
        try:
            with torch.inference_mode():
                while self._scheduler.servings or not self._stopping:
                    self._turn()
                    self._turns += 1
        except BaseException as error:  # noqa: BLE001 - outermost: told with its traceback, and the process ends
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        self._lost = True
        log.error("device lost", error=str(error), exc_info=error)
        try:
            self._loop.call_soon_threadsafe(fail, self._in_hand, NotReady(f"the worker lost its device: {error}"))
        except RuntimeError:
            log.warning("the device was lost after the event loop had closed")
        self._on_fatal(error)

    def run_here(self) -> bool:
        """Run the batch that is due, if one is, in the event loop; False when the device is busy. Event loop only."""
        if not self.alive or not self._device.acquire(blocking=False):
            return False
        try:
            one, batch = self._scheduler.take(0.0) or (None, None)
            if one is None or batch is None:
                return False
            one.here = True
            with torch.inference_mode(), np.errstate(all="ignore"):
                self._run(one, batch)
            one.here = False
            self._turns += 1
        except BaseException as error:  # noqa: BLE001 - outermost: told with its traceback, and the process ends
            self._lose(error)
        finally:
            self._device.release()
        return True

    def _turn(self) -> None:
        """Serve the next batch, or take parked rows on when nobody waits and they are worth it, or for too long."""
        scheduler = self._scheduler
        wait_s = IDLE_TICK_S
        for one in scheduler.servings:
            wait_s = min(wait_s, one.tidy_s)
        taken = scheduler.take(wait_s)
        with self._device:
            self._work(taken)

    def _work(self, taken: tuple[Serving, list[Item] | None] | None) -> None:
        scheduler = self._scheduler
        if taken is not None:
            one, batch = taken
            self._use_threads(one.threads)
            if batch is None:
                self._end(one)
                return
            self._run(one, batch)
        for one in scheduler.servings:
            one.check()
            if one.parked and (one.tidy_s <= 0 if taken is None else one.overdue):
                self._use_threads(one.threads)
                began = time.monotonic()
                one.tidy(to_end=taken is not None)
                scheduler.used(one, time.monotonic() - began)

    def _run(self, one: Serving, batch: list[Item]) -> None:
        self._in_hand = batch
        began = time.monotonic()
        one.serve(batch)
        took_s = time.monotonic() - began
        self._in_hand = ()
        one.batcher.took(len(batch), took_s)
        self._scheduler.used(one, took_s)

    def _end(self, one: Serving) -> None:
        """Its batcher is closed: what is parked goes to its end, so that all feedback is whole."""
        while one.parked:
            one.tidy(to_end=True)
        self._steps_before += one.steps
        self._scheduler.remove(one)
        one.over.set()

    def _use_threads(self, threads: int) -> None:
        if threads != self._threads:
            torch.set_num_threads(threads)  # a setting of the calling thread
            self._threads = threads
