"""Passes that a test holds on the device, and lets go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any


class Held:
    """A hook that keeps passes in segment `k` until `let_go`; a second pass is held again."""

    def __init__(self, k: int = 0) -> None:
        self.k, self.entered, self._free = k, threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, k: int, value: Any) -> None:
        """The hook."""
        if k == self.k:
            self.entered.release()
            assert self._free.acquire(timeout=100)

    def let_go(self, passes: int = 1) -> None:
        """Let so many passes go on."""
        self._free.release(passes)

    async def running(self) -> None:
        """Wait until a pass is held."""
        assert await asyncio.to_thread(self.entered.acquire, True, 60)


def after_warm_up(hook: Callable[[int, Any], None]) -> tuple[Callable[[int, Any], None], dict[str, bool]]:
    """The hook, once the returned dictionary says so: warming up must not be held."""
    switch = {"on": False}

    def switched(k: int, value: Any) -> None:
        if switch["on"]:
            hook(k, value)

    return switched, switch
