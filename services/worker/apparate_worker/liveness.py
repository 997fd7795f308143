"""Whether the device still turns, and how a worker's end is told.

The device thread counts what it does; the event loop looks whether the count goes on. It counts only the time in which
the loop itself turned: a process that was stopped, or a machine that was suspended, has not lost its device.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable

import torch

from apparate.catalog import RampCatalog
from apparate_worker.errors import words_of

LOOK_S = 0.25
PAUSE_S = 4.0  # with LOOK_S below the 5 s in which a lost device must show; no step of a warm model takes so long
PASSES = 10  # a single step that takes as long as so many whole passes is none that goes on
FRAMES = 12  # of a stack, the innermost
LOOP_S = 30.0  # for so long the event loop may be busy with one thing; a body of 2 GB takes about that to read
TRIAL_EVERY_S = 0.5
UNWELL_S = 30.0  # for so long a device may fail its trials; then a new process may do better
EXHAUSTED = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_", "cuDNN error")


class Stalled(RuntimeError):
    """The device has not gone on for longer than any pass takes."""


class Unwell(RuntimeError):
    """The device has failed every pass for UNWELL_S."""


def is_fatal(error: BaseException) -> bool:
    """Whether the device is lost: after a CUDA error every later call fails too, so the process must be replaced."""
    accelerator = getattr(torch, "AcceleratorError", None)
    return (accelerator is not None and isinstance(error, accelerator)) or "CUDA error" in words_of(error)


def is_exhausted(error: BaseException) -> bool:
    """Whether it was the device that failed, not the request, and it may be able to go on: it lacks memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(one in words_of(error) for one in EXHAUSTED)


class Health:
    """Whether the device can do passes: not after one that it failed, until a trial works. For the device thread.

    One request that is too large for the device may fail, and the next be served: so only a trial tells.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = self._tried = 0.0
        self.unwell = ""
        """Why it cannot; empty when it can. Readable from any thread."""

    def note(self, error: Exception) -> None:
        """Take note of what a pass raised."""
        if is_exhausted(error):
            if not self.unwell:
                self._since = self._clock()
                self._tried = float("-inf")
            self.unwell = words_of(error)

    def due(self) -> bool:
        """Whether it is time for a trial."""
        return bool(self.unwell) and self._clock() - self._tried >= TRIAL_EVERY_S

    def well(self) -> None:
        """A trial has worked."""
        self.unwell = ""

    def failed_again(self, error: Exception) -> None:
        """A trial has not. Raises Unwell when none has for too long."""
        self._tried, self.unwell = self._clock(), words_of(error)
        if self._tried - self._since > UNWELL_S:
            raise Unwell(f"the device has failed every pass for {UNWELL_S:g} s: {self.unwell}") from error


def longest_pause_s(catalog: RampCatalog, max_batch: int) -> float:
    """How long a step of a pass may take: far longer than the slowest whole pass that was profiled.

    A step is one segment, so this also covers inputs that are much larger than the profiled ones, and a machine that
    is much slower than the one of the profile.
    """
    slowest_ms = float((catalog.full_ms + catalog.overhead_ms.sum(axis=1)).max())
    return max(PAUSE_S, PASSES * slowest_ms / 1e3 * max(1.0, max_batch / catalog.batch_sizes[-1]))


class Watch:
    """Looks at a count that must change within `longest_s`. `run` in the event loop that serves."""

    def __init__(self, beats: Callable[[], int], longest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._beats, self.longest_s, self._clock = beats, longest_s, clock
        self._count, self._looked = beats(), clock()
        self.still_s = 0.0
        """For how long the count has stood still."""

    @property
    def stalled(self) -> bool:
        """Whether the count has stood still for too long."""
        return self.still_s > self.longest_s

    def look(self) -> bool:
        """Note the count; whether it goes on. To be called every LOOK_S: longer gaps count as that."""
        now, count = self._clock(), self._beats()
        self.still_s = 0.0 if count != self._count else self.still_s + min(now - self._looked, 2 * LOOK_S)
        self._count, self._looked = count, now
        return not self.stalled

    async def run(self, stalled: Callable[[Stalled], None]) -> None:
        """Look until it stands still, and tell once; or until cancelled."""
        while self.look():  # noqa: ASYNC110 - it is another thread that counts
            await asyncio.sleep(LOOK_S)
        stalled(
            Stalled(
                f"the device has not gone on for {self.still_s:.1f} s, at most {self.longest_s:.1f} s are a pass; "
                "spec.serving.stallSeconds allows longer ones"
            )
        )


def guard_loop(loop: asyncio.AbstractEventLoop, gone: Callable[[str], None], longest_s: float = LOOP_S) -> None:
    """Start a thread that calls `gone` with the reason when the event loop has not turned for too long.

    Only a thread can tell: a loop that hangs answers nobody, and cannot end the process either.
    """
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        loop.call_later(LOOK_S, tick)

    def look() -> None:
        watch = Watch(lambda: ticks, longest_s)
        while watch.look():
            time.sleep(LOOK_S)
        gone(f"the event loop has not turned for {watch.still_s:.1f} s, at most {longest_s:.1f} s are allowed")

    loop.call_soon(tick)
    threading.Thread(target=look, name="loop-guard", daemon=True).start()


def stack_of(thread: threading.Thread) -> str:
    """Where a thread is, for the log."""
    frame = sys._current_frames().get(thread.ident or 0)
    return "".join(traceback.format_stack(frame)[-FRAMES:]) if frame is not None else "the thread has ended"
