"""Whose batch runs next: answers in time, over all models, and nobody starved; by hand-made cases and by simulation."""

from __future__ import annotations

import asyncio
import math
import threading
import time

import numpy as np
import pytest
import torch

from apparate.plan import Plan
from apparate_worker.batching import Batcher
from apparate_worker.device import DeviceThread
from apparate_worker.engine import CpuLink, Engine, Schedule
from apparate_worker.errors import NotReady
from apparate_worker.guard import Promise, WorkerGuard
from apparate_worker.pending import Pending
from apparate_worker.scheduler import SHARE_S, Scheduler, Use, Waiting, choose
from apparate_worker.serving import Serving
from support.device_simulation import THREE, Device, missed
from support.models import X, a_prepared_model, items

PROMISE = Promise(0.01)


def waiting(deadline_ms, costs_ms, *, requests=1, share=0.5, arrived_ms=-10.0):
    """A batch whose requests came at `arrived_ms`; now is 0."""
    return Waiting(arrived_ms / 1e3, [deadline_ms / 1e3] * requests, costs_ms / 1e3, share)


def test_a_batch_that_the_other_would_make_late_goes_first():
    patient, urgent = waiting(500, 30), waiting(25, 10)
    assert choose([patient, urgent], 0.0) == 1
    assert choose([urgent, patient], 0.0) == 0


def test_where_one_must_be_late_it_is_the_one_with_fewer_requests():
    few, many = waiting(20, 15, requests=1), waiting(20, 15, requests=6)
    assert choose([few, many], 0.0) == 1


def test_what_is_late_already_is_worth_no_more_than_what_will_be():
    late, soon = waiting(-100, 10, requests=2), waiting(12, 10, requests=3)
    assert choose([late, soon], 0.0) == 1


def test_a_late_model_that_had_less_than_half_of_its_share_goes_before_everybody():
    starving, urgent = waiting(-1, 50, share=0.1), waiting(12, 10, requests=8)
    assert choose([urgent, starving], 0.0) == 1


def test_of_two_that_are_late_for_good_the_one_goes_that_had_less_of_the_device():
    assert choose([waiting(-9, 10, requests=8, share=1.4), waiting(-9, 10, requests=8, share=0.7)], 0.0) == 1


def test_use_is_forgotten_with_time():
    use = Use()
    use.add(1.0, 10.0)
    assert use.spent_s(10.0) == 1.0
    assert use.spent_s(10.0 + SHARE_S) == pytest.approx(math.exp(-1))
    use.add(1.0, 10.0 + SHARE_S)
    assert use.spent_s(10.0 + SHARE_S) == pytest.approx(1 + math.exp(-1))


def missed_by(rule, exits, load=1.2):
    runs = [Device(rule, load=load, exits=exits, seconds=15, seed=seed).run() for seed in range(3)]
    return sum(map(missed, runs)) / len(runs), [run[model.name].missed for run in runs for model in THREE]


def test_of_three_models_at_more_than_can_be_served_fewer_miss_their_objective_than_by_the_usual_rules():
    usual = min(missed_by("first come", "never")[0], missed_by("earliest deadline", "never")[0])
    report, compact = missed_by("ours", "report"), missed_by("ours", "compact")
    assert report[0] < 0.8 * usual
    assert compact[0] < 0.4 * usual
    assert max(report[1]) < 0.5  # and no model pays for the others


@pytest.mark.parametrize("exits", ["never", "report", "compact"])
def test_it_misses_fewer_than_the_earliest_deadline_first_in_overload_and_about_as_few_below(exits):
    assert missed_by("ours", exits, 1.2)[0] < 0.9 * missed_by("earliest deadline", exits, 1.2)[0]
    assert missed_by("ours", exits, 0.8)[0] < missed_by("earliest deadline", exits, 0.8)[0] + 0.002


def test_a_model_whose_passes_are_long_is_served_although_another_never_ends():
    device = Device("ours", load=3.0, exits="never", seconds=10)
    shares = {one.model.name: 0.0 for one in device.scheduler.servings}
    used = device.scheduler.used

    def noted(queue, seconds):
        shares[queue.model.name] += seconds
        used(queue, seconds)

    device.scheduler.used = noted
    device.run()
    assert min(shares.values()) > 0.1 * sum(shares.values())


class Queued:
    def __init__(self, **options):
        self.batcher = Batcher(**{"max_batch": 4, "max_delay_s": 0.0, "max_queue": 10, **options})


def a_request(loop, count=1):
    return Pending({"x": items(count)}, count, loop.create_future(), time.monotonic())


async def test_a_request_to_any_model_wakes_the_device():
    scheduler = Scheduler()
    one, two = Queued(), Queued()
    scheduler.add(one)
    scheduler.add(two)
    taken = asyncio.create_task(asyncio.to_thread(scheduler.take, 20.0))
    await asyncio.sleep(0.05)
    two.batcher.put(a_request(asyncio.get_running_loop()))
    whose, batch = await asyncio.wait_for(taken, 5)
    assert (whose, len(batch)) == (two, 1)


async def test_a_closed_queue_is_told_before_anything_else_and_a_device_without_queues_waits_for_none():
    scheduler = Scheduler()
    one, two = Queued(), Queued()
    scheduler.add(one)
    scheduler.add(two)
    one.batcher.put(a_request(asyncio.get_running_loop()))
    two.batcher.close()
    assert scheduler.take(0.0) == (two, None)
    scheduler.remove(two)
    one.batcher.close()
    scheduler.remove(one)
    threading.Timer(0.05, lambda: wake(scheduler)).start()
    began = time.monotonic()
    assert scheduler.take(20.0) is None
    assert time.monotonic() - began < 10


def wake(scheduler):
    with scheduler.changed:
        scheduler.changed.notify()


class Reports:
    def wants_shadows(self, *, opened):
        return False

    def offer(self, done):
        pass


async def test_models_that_come_and_go_are_served_by_one_thread_and_each_request_by_its_own_model():
    loop = asyncio.get_running_loop()
    thread = DeviceThread(loop=loop)
    thread.start()

    def a_serving(seed):
        prepared = a_prepared_model(seed=seed)
        found = Serving(
            engine=Engine(prepared.model, prepared.heads, CpuLink()),
            batcher=Batcher(max_batch=4, max_delay_s=0.0, max_queue=100),
            inputs=(X,),
            schedule=Schedule(Plan(0), 3),
            guard=WorkerGuard(PROMISE),
            reports=Reports(),
            loop=loop,
            max_batch=4,
        )
        thread.add(found)
        return prepared, found

    models = [a_serving(seed) for seed in range(3)]
    for _ in range(3):
        requests = []
        for _ in range(5):
            for prepared, model in models:
                request = a_request(loop)
                model.batcher.put(request)
                requests.append((prepared, request))
        await asyncio.wait_for(asyncio.gather(*(one.future for _, one in requests)), 10)
        for prepared, request in requests:
            wanted = prepared.model({"x": torch.from_numpy(request.inputs["x"])}).numpy()
            np.testing.assert_allclose(request.logits, wanted, rtol=1e-4, atol=1e-5)
        _, leaving = models.pop(0)
        leaving.batcher.close(NotReady("unloaded"))
        assert await asyncio.to_thread(leaving.over.wait, 5)
        models.append(a_serving(9))
    for _, model in models:
        model.batcher.close()
    assert await thread.ended(5)
