"""Which passes the event loop runs itself, and that every request is answered whichever way it goes."""

import asyncio
import threading
import time
from collections import Counter

import pytest

from apparate.plan import Plan
from apparate_worker.batching import Batcher
from apparate_worker.device import DeviceThread
from apparate_worker.engine import CpuLink, Engine, Schedule
from apparate_worker.errors import NotReady
from apparate_worker.guard import WorkerGuard
from apparate_worker.passtimes import PassTimes
from apparate_worker.pending import Pending
from apparate_worker.serving import QUICK_S, Serving
from support.models import X, a_prepared_model, items

QUICK, SLOW = QUICK_S / 10, QUICK_S * 10
CLOSED, OPEN = Plan.of(1, [0, 2], [0.0, 0.0]), Plan.of(1, [0, 2], [0.05, 0.05])


class Reports:
    def wants_shadows(self, *, opened):
        return False

    def offer(self, done):
        pass


async def ways(x, *, pass_s=QUICK, plan=CLOSED, models=1, max_delay_s=0.0, pause_s=0.0, gap_s=None):
    """The largest pass of each thread that ran any, once every request has its answer."""
    ran, loop = Counter(), asyncio.get_running_loop()

    def hook(k, value):
        name = threading.current_thread().name
        ran[name] = max(ran[name], len(value))
        time.sleep(pause_s)

    prepared = a_prepared_model(hook=hook)
    servings = [
        Serving(
            engine=Engine(prepared.model, prepared.heads, CpuLink()),
            batcher=Batcher(
                max_batch=4, max_delay_s=max_delay_s, max_queue=1000, times=PassTimes([0.0, *[pass_s] * 4])
            ),
            inputs=(X,),
            schedule=Schedule(plan, len(prepared.heads)),
            guard=WorkerGuard(0.01),
            reports=Reports(),
            loop=loop,
            max_batch=4,
        )
        for _ in range(models)
    ]
    thread = DeviceThread(servings, loop=loop)
    thread.start()
    requests = [Pending({"x": one[None]}, 1, loop.create_future(), loop.time()) for one in x]
    for request in requests:
        servings[0].batcher.put(request)
        if gap_s is not None:
            await asyncio.sleep(gap_s)
    await asyncio.gather(*(request.future for request in requests))
    for one in servings:
        one.batcher.close(NotReady("done"))
    assert await thread.ended(5)
    return ran


LOOP, DEVICE = "MainThread", "device"


async def test_a_quick_model_runs_in_the_event_loop():
    assert (await ways(items(20), gap_s=0.001))[LOOP]


async def test_requests_that_are_read_together_make_one_batch():
    assert (await ways(items(200)))[LOOP] == 4


@pytest.mark.parametrize(
    "other",
    [{"pass_s": SLOW}, {"models": 2}, {"max_delay_s": 0.001}, {"plan": OPEN}],
    ids=["slow", "one of two", "one that waits for company", "one with open exits, whose early answers leave at once"],
)
async def test_any_other_model_runs_in_the_device_thread(other):
    assert set(await ways(items(1), **other)) == {DEVICE}


async def test_a_model_that_turns_out_slower_than_its_profile_goes_to_the_device_thread():
    assert (await ways(items(60), pause_s=0.0005, gap_s=0.001))[DEVICE]
