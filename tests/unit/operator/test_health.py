"""What /healthz says: a watch that has ended or goes deaf is told, and forgotten when it hears again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from apparate_operator.health import Health
from apparate_operator.kinds import JOB, POD, WATCHED, Kind


@contextlib.asynccontextmanager
async def watches() -> AsyncIterator[dict[Kind, asyncio.Task[None]]]:
    """A task for each watch, named as kopf names its own."""
    tasks = {
        kind: asyncio.create_task(asyncio.sleep(60), name=f"watcher for {kind.plural}.v1.{kind.group}@None")
        for kind in WATCHED
    }
    try:
        yield tasks
    finally:
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def test_what_the_start_waits_for_is_told_first():
    health = Health()
    assert health.problems() == ["the operator is starting"]
    health.starting = ["may not watch pods"]
    assert health.problems() == ["may not watch pods"]


async def test_a_watch_that_has_ended_is_named():
    health = Health()
    health.starting = []
    async with watches() as tasks:
        assert health.problems() == []
        tasks[POD].cancel()
        await asyncio.gather(tasks[POD], return_exceptions=True)
        assert health.problems() == ["the watch of pods has ended"]


async def test_a_watch_that_misses_changes_twice_in_a_row_is_named_until_it_hears_again():
    health = Health()
    health.starting = []
    async with watches():
        health.watched(JOB, missed=3)
        assert health.problems() == []  # a list may be ahead of a watch once
        health.watched(JOB, missed=1)
        assert health.problems() == ["the watch of jobs misses changes"]
        health.watched(JOB, missed=0)
        assert health.problems() == []
        health.watched(JOB, missed=1)
        assert health.problems() == []
