"""A worker that is asked for more than it can do: who is answered, who is refused, how soon, and what it tells of it.

Passes are let go one by one where what counts is how many answers each gives; so nothing depends on how fast this
machine is, but where the subject is time itself.
"""

import asyncio
import contextlib
import time
from collections import Counter

import grpc
import pytest
from structlog.testing import capture_logs

from apparate.plan import Plan
from apparate_worker import serving
from support.eventually import eventually_async
from support.held import Held, after_warm_up
from support.infer import URL, ask, client, json_body, message, stub
from support.models import a_prepared_model, a_worker, filled, items, only

X = items(1)
GAVE_UP = "the queue is full, and the request gave up its place for one of class high"
HIGH, LOW = {"priority": 1}, {"priority": 2}


class Overload:
    """A worker whose passes are let go one by one, and what its clients hear."""

    def __init__(self, worker, http, held):
        self.worker, self.http, self.held = worker, http, held
        self.queue = only(worker).batcher
        self.coming = []

    def send(self, count, **parameters):
        """So many requests, at once."""
        self.coming += [asyncio.create_task(self._one(parameters)) for _ in range(count)]

    async def _one(self, parameters):
        answer = await self.http.post(URL, json=json_body(X, parameters=parameters))
        return parameters.get("priority", 1), answer

    async def heard(self):
        """{(priority, status): how many} of all that were sent, in the end."""
        answers = await asyncio.wait_for(asyncio.gather(*self.coming), 60)
        return Counter((priority, answer.status_code) for priority, answer in answers)

    async def waits(self, count):
        """Until so many wait."""
        await eventually_async(lambda: self.queue.waiting == count)

    async def settled(self):
        """Until every request that was sent waits, is in the pass that is held, or has its answer."""
        plane = only(self.worker).dataplane
        await eventually_async(lambda: plane.in_flight + sum(one.done() for one in self.coming) == len(self.coming))


@contextlib.asynccontextmanager
async def overloaded(**limits):
    hook, switch = after_warm_up(held := Held())
    limits = {"maxBatch": 4, "maxQueue": 16, **limits}
    async with a_worker(a_prepared_model(hook=hook), serving=limits) as (worker, http, _), client(http) as c:
        switch["on"] = True
        overload = Overload(worker, c, held)
        yield overload
        held.let_go(1000)


@pytest.mark.parametrize("times", [2, 5])
async def test_every_pass_gives_as_many_answers_under_overload_as_at_saturation_and_nobody_is_left_without_one(times):
    passes = 12
    async with overloaded() as worker:
        worker.send(1)
        await worker.held.running()
        for _ in range(passes):
            worker.send(4 * times)
            await worker.settled()
            worker.held.let_go()
            await worker.held.running()
        worker.held.let_go(1000)
        heard = await worker.heard()
    assert set(heard) == {(1, 200), (1, 429)}
    assert sum(heard.values()) == 1 + passes * 4 * times
    assert heard[1, 200] == 1 + 4 * (passes - 1) + 16  # the first pass, whole ones, and at last what was in hand


async def test_the_low_class_is_refused_before_one_of_the_high_class_is():
    passes = 12
    async with overloaded() as worker:
        worker.send(1)
        await worker.held.running()
        for _ in range(passes):
            worker.send(17, **LOW)
            await worker.settled()
            worker.send(3, **HIGH)  # three quarters of what can be served
            await worker.settled()
            worker.held.let_go()
            await worker.held.running()
        worker.held.let_go(1000)
        heard = await worker.heard()
    assert heard[1, 429] == heard[1, 504] == 0
    assert heard[1, 200] == 1 + 3 * passes
    assert heard[2, 200] >= passes  # what the high class leaves is theirs
    assert heard[2, 429] > 0.8 * 17 * passes


async def test_in_a_queue_full_of_the_low_class_the_high_one_finds_places():
    async with overloaded(batching={"lowQueueShare": 1.0}) as worker:
        worker.send(1)
        await worker.held.running()
        worker.send(16, **LOW)
        await worker.waits(16)
        worker.send(16)
        await eventually_async(lambda: sum(one.done() for one in worker.coming) == 16)
        assert await _refusal(worker) == (
            429,
            "the queue is full, and the request gave up its place for one of class high",
        )
        worker.held.let_go(1000)
        assert await worker.heard() == {(1, 200): 17, (2, 429): 16}


async def _refusal(worker):
    answer = next(one.result()[1] for one in worker.coming if one.done())
    return answer.status_code, answer.json()["error"]


async def test_requests_without_a_priority_are_of_the_class_that_the_spec_says():
    async with overloaded(batching={"defaultPriority": 2, "lowQueueShare": 0.25}) as worker:
        worker.send(1, priority=1)
        await worker.held.running()
        worker.send(4)
        worker.send(1, priority=0)
        await eventually_async(lambda: sum(one.done() for one in worker.coming) == 1)
        assert (await _refusal(worker))[1] == "4 requests of class low wait, 4 may wait"


@pytest.mark.parametrize("priority", [-1, 1.5, "high", True])
async def test_a_priority_that_is_none_is_a_400(priority):
    async with a_worker() as (_, http, _), client(http) as c:
        answer = await c.post(URL, json=json_body(X, parameters={"priority": priority}))
        assert answer.status_code == 400
        assert "parameter priority" in answer.json()["error"]


async def test_places_of_clients_that_left_are_free_at_once():
    async with overloaded(maxQueue=4) as worker:
        worker.send(1)
        await worker.held.running()
        worker.send(4)
        await worker.waits(4)
        await asyncio.sleep(0.1)  # longer than the time after which a client is watched
        for one in worker.coming[1:3]:
            one.cancel()
        await worker.waits(2)
        del worker.coming[1:3]
        worker.send(2)
        await worker.waits(4)
        worker.held.let_go(1000)
        assert await worker.heard() == {(1, 200): 5}
        await eventually_async(lambda: only(worker.worker).serving.served == 5)


async def test_deadlines_and_refusals_are_on_time_while_a_pass_takes_for_ever():
    async with overloaded(maxBatch=1, maxQueue=3) as worker:
        worker.send(1)
        await worker.held.running()
        late = [asyncio.create_task(_timed(worker, timeout=3_000_000)) for _ in range(3)]
        await worker.waits(3)
        refused = [await _timed(worker) for _ in range(20)]
        answered = await asyncio.gather(*late)
        worker.held.let_go(10)
        await worker.heard()
        await eventually_async(lambda: only(worker.worker).serving.served)  # a pass is counted behind its answers
        assert only(worker.worker).serving.served == 1  # whose deadline had passed is not run
    assert {status for status, _ in refused} == {429}
    assert min(seconds for _, seconds in refused) < 1.0  # the deadlines of those that wait are later
    assert {status for status, _ in answered} == {504}
    assert 2.9 < min(seconds for _, seconds in answered) < 20  # the pass would take for ever


async def _timed(worker, **parameters):
    begun = time.monotonic()
    answer = await worker.http.post(URL, json=json_body(X, parameters=parameters))
    return answer.status_code, time.monotonic() - begun


async def test_by_deadlines_what_cannot_be_in_time_is_refused_at_once_over_both_protocols_and_told_when_to_come():
    hook, switch = after_warm_up(held := Held())
    limits = {"maxBatch": 1, "batching": {"policy": "deadline"}, "slo": {"latencyMs": 60_000}}
    async with contextlib.AsyncExitStack() as stack:
        worker, http, address = await stack.enter_async_context(a_worker(a_prepared_model(hook=hook), serving=limits))
        c = await stack.enter_async_context(client(http))
        service = stub(await stack.enter_async_context(grpc.aio.insecure_channel(address)))
        batcher = only(worker).batcher
        for _ in range(400):
            batcher.policy.took(1, 0.5)  # as passes of half a second would say
        switch["on"] = True
        coming = [asyncio.create_task(ask(c, X))]
        await held.running()
        coming += [asyncio.create_task(ask(c, X)) for _ in range(3)]
        await eventually_async(lambda: batcher.waiting == 3)
        answer = await c.post(URL, json=json_body(X, parameters={"timeout": 1_000_000}))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
        assert "the request allows" in answer.json()["error"]
        request = message(X)
        request.parameters["timeout"].int64_param = 1_000_000
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await service.ModelInfer(request)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailing = dict(error.value.trailing_metadata())
        assert 500 < int(trailing["grpc-retry-pushback-ms"]) < 2000
        held.let_go(10)
        await asyncio.gather(*coming)


async def test_by_deadlines_the_objective_is_the_limit_of_who_has_none():
    hook, switch = after_warm_up(held := Held())
    limits = {"stallSeconds": 60, "batching": {"policy": "deadline"}, "slo": {"latencyMs": 300}}
    async with a_worker(a_prepared_model(hook=hook), serving=limits) as (_, http, _), client(http) as c:
        switch["on"] = True
        answer = await c.post(URL, json=json_body(X))
        assert answer.status_code == 504
        assert answer.json()["error"] == "no answer within the model's objective of 300 ms"
        held.let_go(10)


async def test_at_three_times_the_load_nearly_all_that_is_computed_is_for_somebody_who_still_waits():
    passes = []

    def slow(k, value):
        if k == 0:
            passes.append(len(value))
            time.sleep(0.06)

    hook, switch = after_warm_up(slow)
    limits = {"maxBatch": 4, "batching": {"policy": "deadline"}, "slo": {"latencyMs": 600}}
    async with a_worker(a_prepared_model(hook=hook), serving=limits) as (worker, http, _), client(http) as c:
        switch["on"] = True
        coming, told = [], -1
        while len(passes) < 25:
            if told < len(passes) or all(one.done() for one in coming):  # however long a pass takes here
                coming += [asyncio.create_task(c.post(URL, json=json_body(X))) for _ in range(3 * 4)]
                told = len(passes)
            await asyncio.sleep(0.005)
        answers = await asyncio.wait_for(asyncio.gather(*coming), 50)
        served = only(worker).serving.served
    heard = Counter(answer.status_code for answer in answers)
    assert set(heard) <= {200, 429, 504}
    assert heard[200] > 0.8 * served
    assert heard[429] > heard[504]  # most are told at once


async def _told_of_a_flood():
    """(stages in the log, the metrics) of a worker with an open exit, after a flood of both classes."""
    hook, switch = after_warm_up(held := Held())
    plan, limits = Plan.of(1, [0], [1.0], "tiny"), {"maxBatch": 4, "maxQueue": 16}
    with capture_logs() as lines:
        async with a_worker(a_prepared_model(hook=hook), plan=plan, serving=limits) as (w, http, _), client(http) as c:
            filled(w)
            switch["on"] = True
            worker = Overload(w, c, held)
            worker.send(1)
            await held.running()
            worker.send(10, **LOW)
            await worker.settled()
            worker.send(20)
            await worker.settled()
            for _ in range(2):
                held.let_go()
                await held.running()
            text = (await c.get("/metrics")).text
            held.let_go(1000)
            await worker.heard()
    return [line["stage"] for line in lines if line["event"] == "under pressure"], text


async def test_each_stage_is_told_once_and_shown_in_the_metrics():
    told, text = await _told_of_a_flood()
    stages = ["short_waits", "exits_first", "shed_low", "refuse"]
    assert [stage for stage in told if stage != "ramps_off"] == stages
    of = 'model="tiny",namespace="default"'
    for stage in stages:
        assert f'apparate_pressure{{{of},stage="{stage}"}} 1.0' in text
        assert f'apparate_pressure_entries_total{{{of},stage="{stage}"}} 1.0' in text
    assert f'apparate_refused_requests_total{{{of},priority="high",reason="queue_full"}} 4.0' in text
    assert f'apparate_refused_requests_total{{{of},priority="low",reason="low_class"}} 10.0' in text


async def test_ramps_that_are_off_because_no_more_can_be_put_off_are_told_too(monkeypatch):
    monkeypatch.setattr(serving, "PARKED_S", 0.0)
    told, text = await _told_of_a_flood()
    assert told.count("ramps_off") == 1
    assert 'stage="ramps_off"} 1.0' in text
