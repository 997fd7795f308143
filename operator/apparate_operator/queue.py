"""Which models to look at: each at most once in the queue, never twice at the same time, later after a failure."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass, field

from apparate_operator.store import Key

BACKOFF_S = (0.2, 60.0)  # first and longest pause after failures of one model


@dataclass
class WorkQueue:
    """For one event loop. Changes go before models that are only looked at again in turn."""

    _urgent: deque[Key] = field(default_factory=deque)
    _later: deque[Key] = field(default_factory=deque)
    _waiting: set[Key] = field(default_factory=set)
    _running: set[Key] = field(default_factory=set)
    _again: set[Key] = field(default_factory=set)
    _failures: dict[Key, int] = field(default_factory=dict)
    _timers: dict[Key, asyncio.TimerHandle] = field(default_factory=dict)
    _filled: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self._waiting) + len(self._again)

    def add(self, key: Key, *, urgent: bool = True) -> None:
        """Look at a model as soon as possible. One that is being looked at is looked at again afterwards."""
        if key in self._running:
            self._again.add(key)
            return
        if key in self._waiting and not urgent:
            return
        if urgent:
            self._urgent.append(key)  # a copy that waits in the other line is passed over when its turn comes
        else:
            self._later.append(key)
        self._waiting.add(key)
        self._filled.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Look at a model after some time; the earlier of two such times counts."""
        loop = asyncio.get_running_loop()
        old = self._timers.get(key)
        if old is not None:
            if old.when() <= loop.time() + seconds:
                return
            old.cancel()
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    async def get(self) -> Key:
        """The next model; call `done` or `failed` afterwards."""
        while True:
            for line in (self._urgent, self._later):
                while line:
                    key = line.popleft()
                    if key in self._waiting:
                        self._waiting.discard(key)
                        self._running.add(key)
                        return key
            self._filled.clear()
            await self._filled.wait()

    def done(self, key: Key) -> None:
        """The model was looked at."""
        self._failures.pop(key, None)
        self._finish(key)

    def failed(self, key: Key) -> float:
        """Looking at the model failed; it is tried again after the time returned, in seconds."""
        self._failures[key] = count = self._failures.get(key, 0) + 1
        first, longest = BACKOFF_S
        pause = min(longest, first * 2.0 ** min(count - 1, 20)) * random.uniform(0.5, 1.0)
        self.add_after(key, pause)
        self._finish(key)
        return pause

    def _finish(self, key: Key) -> None:
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def clear(self) -> None:
        """Forget everything: another replica leads."""
        for timer in self._timers.values():
            timer.cancel()
        for one in (self._urgent, self._later, self._waiting, self._running, self._again, self._failures, self._timers):
            one.clear()
