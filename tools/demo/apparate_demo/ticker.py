"""Waking up on time: event loops round timers to a millisecond, which is too coarse for arrivals of a trace."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable

CLOCK_MONOTONIC, TFD_NONBLOCK, TFD_CLOEXEC, TFD_TIMER_ABSTIME = 1, 0o4000, 0o2000000, 1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Ticker:
    """Calls `due` on the running loop at times of time.monotonic() set by `at`; one time at once.

    A timerfd on Linux (tens of microseconds late); the loop's own timer elsewhere.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._loop, self._due, self._fd = asyncio.get_running_loop(), due, -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            self._loop.add_reader(self._fd, self._fired)

    def at(self, when: float) -> None:
        """Call `due` at `when` (time.monotonic()), at once when that has passed."""
        wait = when - time.monotonic()
        if self._fd < 0:
            self._loop.call_later(max(wait, 0.0), self._due)
        elif wait <= 0:
            self._loop.call_soon(self._due)
        else:
            spec = _Itimerspec(value=_Timespec(int(when), max(int(when % 1 * 1e9), 1)))
            if self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
                raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        """Give the timer back."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _fired(self) -> None:
        os.read(self._fd, 8)
        self._due()
