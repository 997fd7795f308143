"""When a device is taken for lost, and when not; when it can do passes again."""

from __future__ import annotations

import asyncio
import queue

import numpy as np
import pytest
import torch

from apparate.catalog import RampCatalog
from apparate_worker.liveness import (
    LOOK_S,
    PAUSE_S,
    UNWELL_S,
    Health,
    Unwell,
    Watch,
    guard_loop,
    is_exhausted,
    is_fatal,
    longest_pause_s,
)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A watch over a count that a test moves."""

    def __init__(self, longest_s: float = 4.0) -> None:
        self.count, self.clock = 0, Clock()
        self.watch = Watch(lambda: self.count, longest_s, self.clock)

    def looks(self, times: int, *, moves: bool, every_s: float = LOOK_S) -> bool:
        for _ in range(times):
            self.clock.now += every_s
            self.count += moves
            self.watch.look()
        return not self.watch.stalled


def test_a_device_that_stands_still_is_found_within_5_s():
    one = Watched(PAUSE_S)
    assert one.looks(100, moves=True)
    assert one.looks(8, moves=False)
    assert not one.looks(12, moves=False)
    assert one.clock.now - 125.0 <= 5.0


def test_a_step_as_long_as_it_may_be_is_no_stall():
    one = Watched()
    for _ in range(5):
        assert one.looks(16, moves=False)
        assert one.looks(1, moves=True)


def test_a_process_that_was_stopped_has_not_lost_its_device():
    one = Watched()
    one.looks(4, moves=True)
    assert one.looks(1, moves=False, every_s=3600.0)
    assert one.looks(1, moves=True)


def test_a_watch_that_has_found_a_stall_stays_with_it_until_the_count_goes_on():
    one = Watched()
    assert not one.looks(30, moves=False)
    assert not one.looks(1, moves=False)
    assert one.looks(1, moves=True)


@pytest.mark.parametrize(
    ("full_ms", "overhead_ms", "max_batch", "wanted_s"),
    [(2.0, 0.1, 8, PAUSE_S), (900.0, 50.0, 8, 10.0), (900.0, 50.0, 32, 40.0)],
)
def test_a_pass_may_take_far_longer_than_its_profile(full_ms, overhead_ms, max_batch, wanted_s):
    catalog = RampCatalog(
        (1, 8), np.array([[0.5, 1.0]] * 2), np.full((2, 2), overhead_ms), np.array([full_ms / 2, full_ms])
    )
    assert longest_pause_s(catalog, max_batch) == pytest.approx(wanted_s)


@pytest.mark.parametrize(
    ("error", "fatal", "exhausted"),
    [
        (RuntimeError("CUDA error: an illegal memory access was encountered"), True, False),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), False, True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), False, True),
        (MemoryError(), False, True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), False, True),
        (RuntimeError("index 30522 is out of range"), False, False),
        (ValueError("poison"), False, False),
    ],
    ids=str,
)
def test_what_a_pass_raises_says_whether_device_or_request_is_to_blame(error, fatal, exhausted):
    assert (is_fatal(error), is_exhausted(error)) == (fatal, exhausted)


def test_a_device_that_failed_is_well_after_a_trial():
    clock = Clock()
    health = Health(clock)
    health.note(ValueError("poison"))
    assert (health.unwell, health.due()) == ("", False)
    health.note(MemoryError("no memory"))
    assert (health.unwell, health.due()) == ("no memory", True)
    health.failed_again(MemoryError("still none"))
    assert (health.unwell, health.due()) == ("still none", False)
    clock.now += 1.0
    assert health.due()
    health.well()
    assert (health.unwell, health.due()) == ("", False)


def test_a_device_that_fails_every_trial_is_given_up():
    clock = Clock()
    health = Health(clock)
    health.note(MemoryError("no memory"))
    for _ in range(int(UNWELL_S)):
        clock.now += 1.0
        health.failed_again(MemoryError("no memory"))
    clock.now += 1.0
    with pytest.raises(Unwell, match=r"failed every pass for 30 s: no memory"):
        health.failed_again(MemoryError("no memory"))


async def test_an_event_loop_that_does_not_turn_is_told_by_a_thread():
    gone = queue.Queue()
    guard_loop(asyncio.get_running_loop(), gone.put, longest_s=0.6)
    for _ in range(4):
        await asyncio.sleep(0.5)
    assert gone.empty()
    assert "has not turned for" in gone.get(timeout=10)  # which blocks the loop
