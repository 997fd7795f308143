"""Who may wait: bounds of classes, the low one giving way to the high one, and who would be late."""

import asyncio
import math

import pytest

from apparate_worker.admission import HIGH, LOW, LOW_ONE_IN, class_of
from apparate_worker.batching import Batcher
from apparate_worker.errors import InvalidRequest, LowClassShed, QueueFull, WouldBeLate
from apparate_worker.passtimes import PassTimes
from apparate_worker.pending import Pending
from apparate_worker.policies import Deadline, SizeAge
from apparate_worker.pressure import Stage
from support.queue_simulation import take


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def a_batcher(clock=None, *, deadline=False, max_batch=4, row_s=1.0, **limits):
    times = PassTimes([row_s * n for n in range(max_batch + 1)])
    policy = Deadline(times, max_batch, 0.0) if deadline else SizeAge(times, max_batch, 0.0)
    limits = {"max_queue": 8, **limits}
    return Batcher(max_batch=max_batch, max_delay_s=0.0, times=times, policy=policy, clock=clock or Clock(), **limits)


def a_request(priority=HIGH, count=1, *, arrived=0.0, deadline=math.inf):
    future = asyncio.get_running_loop().create_future()
    return Pending({}, count, future, arrived, priority=priority, deadline=deadline)


def put(batcher, *requests):
    for one in requests:
        batcher.put(one)
    return requests


def taken(batcher):
    return [item.request for item in take(batcher, batcher._clock)]


@pytest.mark.parametrize(("priority", "found"), [(1, HIGH), (2, LOW), (3, LOW), (2**32 - 1, LOW)])
def test_priority_1_is_the_high_class_and_everything_above_the_low_one(priority, found):
    assert class_of(priority) == found


async def test_the_high_class_goes_first_however_late_it_came():
    batcher = a_batcher()
    low = put(batcher, *(a_request(LOW) for _ in range(4)))
    high = put(batcher, *(a_request(HIGH) for _ in range(4)))
    assert taken(batcher) == [*high]
    assert taken(batcher) == [*low]


async def test_places_that_the_high_class_leaves_are_the_low_ones():
    batcher = a_batcher()
    low, high = put(batcher, a_request(LOW), a_request(LOW)), put(batcher, a_request())
    assert taken(batcher) == [*high, *low]


async def test_the_low_class_gets_its_share_of_rows_although_the_high_one_never_ends():
    batcher, low = a_batcher(max_queue=100, low_share=1.0), 0
    put(batcher, *(a_request(LOW) for _ in range(50)), *(a_request() for _ in range(40)))
    for _ in range(LOW_ONE_IN * 4):
        batch = taken(batcher)
        low += sum(one.priority == LOW for one in batch)
        put(batcher, *(a_request() for one in batch if one.priority == HIGH))
    assert low == 4 * LOW_ONE_IN * 4 // LOW_ONE_IN


async def test_the_low_class_fills_its_part_of_the_queue_only():
    batcher = a_batcher(max_queue=8, low_share=0.5)
    put(batcher, *(a_request(LOW) for _ in range(4)))
    with pytest.raises(LowClassShed, match="4 requests of class low wait, 4 may wait"):
        batcher.put(a_request(LOW))
    put(batcher, *(a_request() for _ in range(4)))
    assert batcher.pressure.stages == (Stage.SHED_LOW,)


async def test_in_a_full_queue_the_newest_of_the_low_class_give_up_their_places_before_a_high_one_is_refused():
    batcher = a_batcher(max_queue=4, low_share=0.5)
    old, new = put(batcher, a_request(LOW), a_request(LOW))
    put(batcher, a_request(), a_request(), a_request())
    assert isinstance(new.future.exception(), LowClassShed)
    put(batcher, a_request())
    assert isinstance(old.future.exception(), LowClassShed)
    assert Stage.REFUSE not in batcher.pressure.stages
    with pytest.raises(QueueFull, match="4 requests wait, 4 may wait"):
        batcher.put(a_request())
    assert batcher.pressure.stages == (Stage.SHED_LOW, Stage.REFUSE)
    assert batcher.admission.refused == {("low", "low_class"): 2, ("high", "queue_full"): 1}


async def test_nobody_gives_up_a_place_for_one_who_does_not_fit_even_so():
    batcher = a_batcher(max_queue=4, low_share=0.5)
    (low,) = put(batcher, a_request(LOW))
    put(batcher, a_request(count=3))
    with pytest.raises(QueueFull):
        batcher.put(a_request(count=2))
    assert not low.future.done()


async def test_a_request_that_has_begun_does_not_give_up_the_rest():
    batcher = a_batcher(max_queue=8, low_share=1.0)
    (low,) = put(batcher, a_request(LOW, count=6))
    taken(batcher)
    put(batcher, a_request(count=6))
    with pytest.raises(QueueFull):
        batcher.put(a_request())
    assert not low.future.done()


async def test_a_low_request_larger_than_its_part_of_the_queue_can_never_fit():
    with pytest.raises(InvalidRequest, match="has 5 items, the queue holds 4 of class low"):
        a_batcher(max_queue=8, low_share=0.5).put(a_request(LOW, count=5))


async def test_a_refusal_says_how_long_what_waits_will_take():
    batcher = a_batcher(max_queue=8, row_s=0.9)
    put(batcher, *(a_request() for _ in range(8)))
    with pytest.raises(QueueFull) as refused:
        batcher.put(a_request())
    assert (refused.value.retry_after_ms, refused.value.retry_after_s) == (7200, 8)


async def test_by_deadlines_who_would_be_late_is_refused_at_once_and_told_when_not():
    batcher = a_batcher(deadline=True, max_queue=100)
    put(batcher, *(a_request(deadline=8.0) for _ in range(8)))
    with pytest.raises(WouldBeLate, match="an answer would take 12000 ms, the request allows 9000 ms more") as refused:
        batcher.put(a_request(deadline=9.0))
    assert refused.value.retry_after_s == 3
    put(batcher, a_request(deadline=12.0), a_request())


async def test_by_deadlines_the_pass_under_way_counts():
    batcher = a_batcher(clock := Clock(), deadline=True)
    put(batcher, *(a_request() for _ in range(4)))
    taken(batcher)
    clock.now = 1.0
    with pytest.raises(WouldBeLate, match="would take 4000 ms"):
        batcher.put(a_request(deadline=4.5))
    put(batcher, a_request(deadline=5.5))


async def test_by_deadlines_who_meets_an_idle_device_is_taken_whatever_is_said_of_it():
    batcher = a_batcher(deadline=True, row_s=1000.0)
    one = put(batcher, a_request(deadline=1.0))
    assert taken(batcher) == [*one]


async def test_by_deadlines_the_low_class_stands_behind_all_and_the_high_one_behind_its_own():
    batcher = a_batcher(deadline=True, max_queue=100, low_share=1.0)
    put(batcher, *(a_request(LOW, deadline=100.0) for _ in range(12)))
    with pytest.raises(WouldBeLate):
        batcher.put(a_request(LOW, deadline=5.0))
    put(batcher, a_request(HIGH, deadline=5.0))


@pytest.mark.parametrize("deadline", [True, False])
async def test_who_can_no_longer_be_in_time_leaves_the_device_to_who_can(deadline):
    batcher = a_batcher(clock := Clock(), deadline=deadline, max_queue=100)
    late, fine = put(batcher, a_request(deadline=3.0), a_request(deadline=100.0))
    clock.now = 2.5
    assert taken(batcher) == [fine]
    assert late.dropped


async def test_a_batch_is_no_larger_than_its_oldest_can_afford():
    batcher = a_batcher(Clock(), max_batch=8)
    requests = put(batcher, a_request(deadline=2.0), a_request(), a_request())
    assert taken(batcher) == [*requests[:2]]


async def test_where_many_wait_who_would_shrink_the_batch_leaves_it():
    batcher = a_batcher(Clock(), max_queue=100)
    tight = put(batcher, a_request(deadline=1.5))
    others = put(batcher, *(a_request() for _ in range(8)))
    assert taken(batcher) == [*others[:4]]
    assert tight[0].dropped


async def test_the_only_one_is_tried_although_it_looks_late_because_only_passes_correct_the_times():
    batcher = a_batcher(clock := Clock())
    one = put(batcher, a_request(deadline=1.0))
    clock.now = 0.9
    assert taken(batcher) == [*one]
