"""In which order and how often models are looked at."""

from __future__ import annotations

import asyncio

from apparate_operator.queue import WorkQueue

A, B, C = ("n", "a"), ("n", "b"), ("n", "c")


async def test_a_model_waits_only_once():
    queue = WorkQueue()
    for _ in range(3):
        queue.add(A)
    assert await queue.get() == A
    assert len(queue) == 0


async def test_a_change_goes_before_models_that_are_only_looked_at_in_turn():
    queue = WorkQueue()
    queue.add(A, urgent=False)
    queue.add(B, urgent=False)
    queue.add(B)
    assert [await queue.get(), await queue.get()] == [B, A]


async def test_a_model_that_changes_while_it_is_looked_at_is_looked_at_again_afterwards():
    queue = WorkQueue()
    queue.add(A)
    key = await queue.get()
    queue.add(A)
    queue.add(C)
    assert await queue.get() == C
    queue.done(key)
    assert await queue.get() == A


async def test_after_a_failure_a_model_is_tried_again_later_and_later():
    queue = WorkQueue()
    pauses = []
    for _ in range(3):
        queue.add(A)
        pauses.append(queue.failed(await queue.get()))
    assert pauses[0] <= 0.2
    assert 0.4 <= pauses[2] <= 0.8
    assert await asyncio.wait_for(queue.get(), 2) == A


async def test_nothing_is_left_when_another_replica_leads():
    queue = WorkQueue()
    queue.add(A)
    queue.add_after(B, 0.01)
    queue.clear()
    await asyncio.sleep(0.05)
    assert len(queue) == 0
