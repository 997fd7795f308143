"""The search for other ramps of one model: one at a time, beside its loop, in a thread that gives way to serving."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

from apparate.adaptation.policy import Search

NICENESS = 10
Propose = Callable[[tuple[int, ...]], Awaitable[object]]


class Searching:
    """At most one search; what it finds is proposed."""

    def __init__(self, model: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"search {model}", initializer=_give_way)
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether another search may begin."""
        return self._task is None

    def begin(self, search: Search, propose: Propose) -> None:
        """Search, and propose what is found."""
        self._task = asyncio.create_task(self._run(search, propose))

    async def settle(self) -> None:
        """Have done with a search that has ended; raises what it raised."""
        if self._task is not None and self._task.done():
            ended, self._task = self._task, None
            await ended

    async def end(self) -> None:
        """Give up a search that runs; there is none any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown(wait=False)

    async def _run(self, search: Search, propose: Propose) -> None:
        await propose(await asyncio.get_running_loop().run_in_executor(self._thread, search.run))


def _give_way() -> None:
    """Lower the priority of the calling thread: a search for ramps can wait, answers on the same machine cannot."""
    with contextlib.suppress(OSError, AttributeError):  # not every system has priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
