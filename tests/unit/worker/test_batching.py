"""Batches by size and age in order of arrival; nobody who has left takes a place."""

import asyncio
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate.contract.resource import TensorSpec
from apparate.plan import MAX_REVISION
from apparate_worker.batching import Batcher
from apparate_worker.errors import InvalidRequest, NotReady, QueueFull
from apparate_worker.line import SWEEP_ABOVE
from apparate_worker.pending import ALIGNMENT, Item, Pending, aligned, stack
from apparate_worker.scheduler import Scheduler
from support.queue_simulation import Queue, take


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def a_batcher(clock=None, **limits):
    values = {"max_batch": 4, "max_delay_s": 0.0, "max_queue": 100, **limits}
    return Batcher(**values, clock=clock or Clock())


def a_request(count=1, arrived=0.0, **inputs):
    return Pending(inputs, count, asyncio.get_running_loop().create_future(), arrived)


def taken(batcher):
    return [(item.request, item.index) for item in take(batcher, batcher._clock)]


async def test_an_idle_device_takes_what_is_there_at_once():
    batcher, one = a_batcher(), a_request()
    batcher.put(one)
    assert taken(batcher) == [(one, 0)]


async def test_nothing_waits_and_nothing_is_taken():
    assert taken(a_batcher()) == []


async def test_requests_leave_in_the_order_they_came_and_no_more_than_fit():
    batcher, requests = a_batcher(), [a_request() for _ in range(6)]
    for one in requests:
        batcher.put(one)
    assert taken(batcher) == [(one, 0) for one in requests[:4]]
    assert taken(batcher) == [(one, 0) for one in requests[4:]]


async def test_a_request_of_many_items_is_split_over_batches():
    batcher, big, small = a_batcher(), a_request(5), a_request()
    batcher.put(big)
    batcher.put(small)
    assert taken(batcher) == [(big, i) for i in range(4)]
    assert taken(batcher) == [(big, 4), (small, 0)]


async def test_with_a_delay_the_oldest_waits_for_company_but_no_longer():
    clock = Clock()
    batcher = a_batcher(clock, max_delay_s=2.0)
    batcher.put(a_request(arrived=0.0))
    clock.now = 1.9
    assert taken(batcher) == []
    clock.now = 2.0
    assert len(taken(batcher)) == 1


async def test_a_full_batch_does_not_wait_for_its_age():
    batcher = a_batcher(max_delay_s=2.0)
    batcher.put(a_request(4))
    assert len(taken(batcher)) == 4


async def test_who_has_left_takes_no_place_and_does_not_count():
    batcher, left, here = a_batcher(max_queue=2), a_request(), a_request()
    batcher.put(left)
    batcher.put(here)
    batcher.drop(left)
    assert batcher.waiting == 1
    batcher.put(a_request())
    assert taken(batcher)[0] == (here, 0)


async def test_the_rest_of_a_request_that_has_left_does_not_run():
    batcher, big = a_batcher(), a_request(6)
    batcher.put(big)
    assert len(taken(batcher)) == 4
    batcher.drop(big)
    assert (taken(batcher), batcher.waiting) == ([], 0)


async def test_leaving_twice_counts_once():
    batcher, one = a_batcher(), a_request()
    batcher.put(one)
    batcher.drop(one)
    batcher.drop(one)
    assert batcher.waiting == 0


async def test_those_who_left_do_not_pile_up_while_the_device_is_busy():
    batcher = a_batcher()
    for _ in range(1000):
        one = a_request()
        batcher.put(one)
        batcher.drop(one)
    assert sum(len(line.requests) for line in batcher._lines) <= SWEEP_ABOVE + 1


async def test_a_full_queue_refuses_with_the_numbers():
    batcher = a_batcher(max_queue=3)
    batcher.put(a_request(2))
    with pytest.raises(QueueFull, match="2 requests wait, 3 may wait"):
        batcher.put(a_request(2))
    batcher.put(a_request(1))


async def test_a_request_that_can_never_fit_is_told_so():
    with pytest.raises(InvalidRequest, match="has 4 items, the queue holds 3"):
        a_batcher(max_queue=3).put(a_request(4))


async def test_a_closed_batcher_refuses_and_hands_back_who_waited():
    batcher, one, two = a_batcher(), a_request(3), a_request()
    batcher.put(one)
    batcher.put(two)
    assert batcher.close() == [one, two]
    with pytest.raises(NotReady):
        batcher.put(a_request())


async def test_a_waiting_device_wakes_when_a_request_comes():
    import time

    batcher, found, scheduler = Batcher(max_batch=4, max_delay_s=0.0, max_queue=9), [], Scheduler()
    scheduler.add(Queue(batcher))
    thread = threading.Thread(target=lambda: found.extend(scheduler.take(10)[1]))
    thread.start()
    batcher.put(a_request(arrived=time.monotonic()))
    await asyncio.to_thread(thread.join, 5)
    assert len(found) == 1


async def test_an_answer_is_whole_when_its_last_item_has_come():
    one = a_request(2)
    one.answer(1, np.array([0.0, 1.0]), 1, 2, 7)
    assert not one.future.done()
    one.answer(0, np.array([1.0, 0.0]), 0, -1, 8)
    assert one.future.done()
    assert (one.labels.tolist(), one.exits.tolist(), one.revision) == ([0, 1], [-1, 2], 8)


async def test_an_answer_names_the_newest_plan_also_where_numbers_start_again():
    one = a_request(2)
    one.answer(0, np.zeros(2), 0, -1, MAX_REVISION)
    one.answer(1, np.zeros(2), 0, -1, 1)
    assert one.revision == 1


async def test_an_answer_for_who_was_cancelled_is_nobodys_trouble():
    one = a_request()
    one.future.cancel()
    one.answer(0, np.zeros(2), 0, -1, 1)
    one.fail(NotReady("gone"))
    assert one.future.cancelled()


async def test_items_of_one_shape_are_stacked():
    spec = TensorSpec(name="x", datatype="FP32", shape=(2,))
    request = a_request(2, x=np.array([[1, 2], [3, 4]], np.float32))
    assert stack([Item(request, 1), Item(request, 0)], [spec])["x"].tolist() == [[3, 4], [1, 2]]


async def test_shorter_items_are_filled_up_with_the_inputs_own_pad_value():
    specs = [
        TensorSpec(name="ids", datatype="INT64", shape=(-1,), pad=9),
        TensorSpec(name="mask", datatype="INT64", shape=(-1,)),
    ]
    short = a_request(ids=np.array([[1]]), mask=np.array([[1]]))
    long = a_request(ids=np.array([[2, 3, 4]]), mask=np.array([[1, 1, 1]]))
    batch = stack([Item(short, 0), Item(long, 0)], specs)
    assert batch["ids"].tolist() == [[1, 9, 9], [2, 3, 4]]
    assert batch["mask"].tolist() == [[1, 0, 0], [1, 1, 1]]


async def test_a_batch_does_not_share_memory_with_its_requests():
    spec = TensorSpec(name="x", datatype="FP32", shape=(2,))
    request = a_request(x=np.zeros((1, 2), np.float32))
    stack([Item(request, 0)], [spec])["x"][:] = 5
    assert request.inputs["x"].tolist() == [[0, 0]]


@given(st.integers(1, 5), st.integers(1, 40), st.sampled_from(["<f4", "<i8", "<u1", "<f2"]))
def test_batches_stand_on_the_boundary_that_torch_gives_its_tensors(rows, width, dtype):
    batch = aligned((rows, width), np.dtype(dtype))
    assert (batch.shape, batch.dtype, batch.ctypes.data % ALIGNMENT) == ((rows, width), np.dtype(dtype), 0)
