"""What happens to everybody else when one request, one client or the device goes wrong."""

import asyncio
import contextlib
import time

import grpc
import httpx
import numpy as np
import pytest
from structlog.testing import capture_logs

from apparate.adaptation.guard import GuardState
from apparate.plan import Plan
from apparate_worker import liveness
from apparate_worker.heartbeat import Heartbeat
from support.eventually import eventually_async
from support.held import Held, after_warm_up
from support.infer import URL, ask, client, json_body, message, stub
from support.models import a_prepared_model, a_worker, filled, items, only

POISON = 1e6


@contextlib.asynccontextmanager
async def served(prepared, **options):
    """(worker, its HTTP client, its gRPC service)."""
    async with contextlib.AsyncExitStack() as stack:
        worker, http, address = await stack.enter_async_context(a_worker(prepared, **options))
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        yield worker, await stack.enter_async_context(client(http)), stub(channel)


def poisoned(k, value):
    if k == 1 and (value.abs() > 1e5).any():
        raise RuntimeError("this value is poison")


def no_unpoison(k, value):
    if k == 0 and (value.abs() > 1e5).any():
        raise RuntimeError("this value is poison")


async def test_one_bad_item_in_a_batch_of_eight_fails_alone():
    held = Held()

    def hook(k, value):
        if k == 0 and len(value) == 1 and float(value[0, 0]) == 42.0:
            held(k, value)
        no_unpoison(k, value)

    x = items(8)
    x[3, 0] = POISON
    wedge = items(1)
    wedge[0, 0] = 42.0
    async with a_worker(a_prepared_model(hook=hook)) as (_, http, _), client(http) as c:
        first = asyncio.create_task(ask(c, wedge))
        await held.running()
        batch = [asyncio.create_task(c.post(URL, json=json_body(row[None]))) for row in x]
        malformed = await c.post(
            URL, json={"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1]}]}
        )
        await eventually_async(lambda: _waiting(c, 8))
        held.let_go()
        answers = await asyncio.gather(*batch)
        await first
    assert [a.status_code for a in answers] == [200, 200, 200, 500, 200, 200, 200, 200]
    assert "poison" in answers[3].json()["error"]
    assert malformed.status_code == 400


async def test_a_model_that_raises_on_every_request_fills_no_log():
    x = items(1)
    x[0, 0] = POISON
    with capture_logs() as lines:
        async with a_worker(a_prepared_model(hook=no_unpoison)) as (_, http, _), client(http) as c:
            answers = [await c.post(URL, json=json_body(x)) for _ in range(20)]
    told = [line for line in lines if line["event"] == "the model raised on a request"]
    assert {answer.status_code for answer in answers} == {500}
    assert len(told) == 1 and told[0]["exc_info"] is not None


async def _waiting(c, count):
    text = (await c.get("/metrics")).text
    return f'apparate_waiting_requests{{model="tiny",namespace="default"}} {count}.0' in text


async def test_answers_that_left_before_a_pass_failed_stay_and_only_the_rest_is_tried_again():
    seen = []

    def hook(k, value):
        seen.append((k, len(value)))
        if k == 3 and len(value) == 2 and float(value[0, 0]) == float(value[0, 0]) and switch["on"]:
            raise RuntimeError("late failure")

    switch = {"on": False}
    plan = Plan.of(1, [0], [1.0], "tiny")
    async with served(a_prepared_model(hook=hook), plan=plan, serving={"maxDelayMs": 50}) as (worker, c, _):
        filled(worker)
        switch["on"] = True
        answers = await asyncio.gather(*(ask(c, row[None]) for row in items(2)))
    assert [a["parameters"]["exit_ramp"] for a in answers] == [0, 0]


async def test_an_early_answer_leaves_while_its_pass_still_runs():
    hook, switch = after_warm_up(held := Held(k=2))
    async with served(a_prepared_model(hook=hook), plan=Plan.of(1, [1], [1.0], "tiny")) as (worker, c, _):
        filled(worker)
        switch["on"] = True
        answer = await asyncio.wait_for(ask(c, items(1)), 50)
        assert answer["parameters"]["exit_ramp"] == 1
        await held.running()
        held.let_go()


async def test_clients_that_give_up_by_the_hundred_do_no_harm():
    async with a_worker() as (worker, http, _), client(http) as c:

        async def impatient():
            with contextlib.suppress(httpx.TimeoutException):
                await c.post(URL, json=json_body(items(1)), timeout=httpx.Timeout(5, read=0.0001))

        for _ in range(5):
            await asyncio.gather(*(impatient() for _ in range(100)))
        answers = await asyncio.gather(*(c.post(URL, json=json_body(items(1))) for _ in range(100)))
        assert {a.status_code for a in answers} == {200}
        await eventually_async(lambda: only(worker).dataplane.in_flight == 0)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
async def test_a_client_that_leaves_while_it_waits_is_dropped_before_the_pass(protocol):
    hook, switch = after_warm_up(held := Held())
    async with served(a_prepared_model(hook=hook), serving={"maxBatch": 1}) as (worker, c, service):
        switch["on"] = True
        first = asyncio.create_task(ask(c, items(1)))
        await held.running()
        if protocol == "http":
            leaving = asyncio.ensure_future(c.post(URL, json=json_body(items(1))))
        else:
            leaving = asyncio.ensure_future(service.ModelInfer(message(items(1))))
        await eventually_async(lambda: only(worker).batcher.waiting == 1)
        await asyncio.sleep(0.1)  # longer than the time after which a client is watched
        leaving.cancel()
        await eventually_async(lambda: only(worker).batcher.waiting == 0)
        held.let_go(5)
        await first
        await eventually_async(lambda: (only(worker).dataplane.in_flight, only(worker).serving.served) == (0, 1))


async def test_a_full_queue_refuses_at_once_and_says_when_to_try_again():
    hook, switch = after_warm_up(held := Held())
    limits = {"maxBatch": 1, "maxQueue": 2}
    async with served(a_prepared_model(hook=hook), serving=limits) as (worker, c, service):
        switch["on"] = True
        running = asyncio.create_task(ask(c, items(1)))
        await held.running()
        waiting = [asyncio.create_task(ask(c, items(1))) for _ in range(2)]
        await eventually_async(lambda: only(worker).batcher.waiting == 2)
        refused = await asyncio.wait_for(c.post(URL, json=json_body(items(1))), 50)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "2 may wait" in refused.json()["error"]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await service.ModelInfer(message(items(1)))
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        held.let_go(9)
        await asyncio.gather(running, *waiting)


async def test_a_deadline_holds_while_another_pass_runs():
    hook, switch = after_warm_up(held := Held())
    async with served(a_prepared_model(hook=hook), serving={"maxBatch": 1}) as (_, c, service):
        switch["on"] = True
        running = asyncio.create_task(ask(c, items(1)))
        await held.running()
        begun = time.monotonic()
        late = await c.post(URL, json=json_body(items(1), parameters={"timeout": 200_000}))
        assert late.status_code == 504
        assert 0.15 < time.monotonic() - begun < 20
        assert "200000 microseconds" in late.json()["error"]
        request = message(items(1))
        request.parameters["timeout"].int64_param = 100_000
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await service.ModelInfer(request)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        held.let_go(9)
        await running


async def test_the_specs_own_limit_is_on_waiting_not_on_the_pass():
    hook, switch = after_warm_up(held := Held())
    limits = {"maxBatch": 1, "timeoutMs": 200}
    async with a_worker(a_prepared_model(hook=hook), serving=limits) as (_, http, _), client(http) as c:
        switch["on"] = True
        running = asyncio.create_task(ask(c, items(1)))
        await held.running()
        assert (await c.post(URL, json=json_body(items(1)))).status_code == 504
        held.let_go(9)
        await running


async def test_a_lost_device_fails_what_waits_and_shows_at_once():
    def lost(k, value):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    hook, switch = after_warm_up(lost)
    async with a_worker(a_prepared_model(hook=hook)) as (worker, http, _), client(http) as c:
        switch["on"] = True
        answer = await asyncio.wait_for(c.post(URL, json=json_body(items(1))), 50)
        assert (answer.status_code, "CUDA error" in answer.json()["error"]) == (503, True)
        await asyncio.wait_for(worker.failed.wait(), 50)
        assert (await c.get("/v2/health/live")).status_code == 503
        assert (await c.get("/v2/health/ready")).status_code == 503
        assert (await c.post(URL, json=json_body(items(1)))).status_code == 503


async def test_exits_that_turn_out_wrong_close_and_a_newer_plan_opens_them_again():
    prepared = a_prepared_model(sharp=5.0)
    wrong = [row for row in items(400) if _disagrees(prepared, row)]
    assert len(wrong) > 20
    async with a_worker(prepared, plan=Plan.of(1, [0], [1.0], "tiny")) as (worker, http, _), client(http) as c:
        filled(worker)
        for count, row in enumerate(wrong[:20], 1):
            await ask(c, row[None])
            await eventually_async(lambda count=count: only(worker).serving.served == count)  # the guard heard of it
        await eventually_async(lambda: only(worker).guard.state is GuardState.LOSS_ABOVE_BUDGET)
        assert (await ask(c, wrong[0][None]))["parameters"]["exit_ramp"] == -1
        await eventually_async(lambda: only(worker).serving.served == 21)
        only(worker).apply(Plan.of(2, [0], [1.0], "tiny"))
        filled(worker)
        await ask(c, wrong[0][None])
        filled(worker)
        parameters = (await ask(c, wrong[0][None]))["parameters"]
        assert (parameters["plan_revision"], parameters["exit_layer"]) == (2, "ramp0")


def _disagrees(prepared, row):
    import torch

    with torch.inference_mode():
        x = {"x": torch.from_numpy(row[None])}
        state = prepared.model.advance(0, prepared.model.start(x))
        logits = prepared.heads[0].logits(state.value).numpy()
        return int(np.argmax(logits)) != int(prepared.model(x).argmax())


async def test_a_draining_worker_answers_what_it_took_and_refuses_the_rest():
    hook, switch = after_warm_up(held := Held())
    async with a_worker(a_prepared_model(hook=hook)) as (worker, http, _), client(http) as c:
        switch["on"] = True
        running = asyncio.create_task(ask(c, items(1)))
        await held.running()
        draining = asyncio.create_task(worker.drain(0.0))
        await eventually_async(lambda: not only(worker).dataplane.accepting)
        assert (await c.get("/v2/health/ready")).status_code == 503
        refused = await c.post(URL, json=json_body(items(1)))
        assert (refused.status_code, refused.headers["connection"]) == (503, "close")
        held.let_go(9)
        assert (await running)["outputs"]
        assert await draining


async def test_clients_with_idle_connections_are_sent_elsewhere_before_anything_is_refused():
    hook, switch = after_warm_up(held := Held())
    async with a_worker(a_prepared_model(hook=hook)) as (worker, http, address), client(http) as c:
        reader, writer = await asyncio.open_connection(*http.split(":"))
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"}")
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.channel_ready()
            switch["on"] = True
            running = asyncio.create_task(ask(c, items(1)))
            await held.running()
            draining = asyncio.create_task(worker.drain(0.0))
            assert await asyncio.wait_for(reader.read(), 50) == b""
            left = lambda: channel.get_state() is not grpc.ChannelConnectivity.READY  # noqa: E731
            await eventually_async(lambda: left() and not only(worker).dataplane.accepting)
            held.let_go(9)
            assert (await running)["outputs"]
        writer.close()
        assert await draining


async def test_draining_ends_at_its_deadline_even_when_a_pass_is_stuck():
    hook, switch = after_warm_up(held := Held())
    async with served(a_prepared_model(hook=hook), serving={"drainSeconds": 0.3}) as (worker, c, _):
        switch["on"] = True
        stuck = asyncio.create_task(c.post(URL, json=json_body(items(1))))
        await held.running()
        begun = time.monotonic()
        assert not await worker.drain(60.0)
        assert time.monotonic() - begun < 30
        held.let_go(9)
        stuck.cancel()


async def test_a_pass_that_never_ends_turns_live_off_and_leaves_nobody_without_an_answer():
    hook, switch = after_warm_up(held := Held())
    limits = {"maxBatch": 2, "stallSeconds": 1}
    async with served(a_prepared_model(hook=hook), serving=limits) as (worker, c, service):
        switch["on"] = True
        asked = [asyncio.create_task(c.post(URL, json=json_body(items(n)))) for n in (1, 2, 1)]
        called = asyncio.ensure_future(service.ModelInfer(message(items(1))))
        await held.running()
        answers = await asyncio.wait_for(asyncio.gather(*asked), 50)
        assert {answer.status_code for answer in answers} == {503}
        assert "has not gone on for" in answers[0].json()["error"]
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await called
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await c.get("/v2/health/live")).status_code == 503
        assert (await c.get("/v2/health/ready")).status_code == 503
        assert (await c.post(URL, json=json_body(items(1)))).status_code == 503
        assert worker.failed.is_set() and "spec.serving.stallSeconds" in worker.lost
        held.let_go(9)


async def test_a_long_pass_whose_steps_go_on_is_not_taken_for_lost():
    hook, switch = after_warm_up(lambda k, value: time.sleep(0.7))
    async with served(a_prepared_model(hook=hook), serving={"stallSeconds": 2}) as (worker, c, _):
        switch["on"] = True
        assert (await ask(c, items(1)))["outputs"]  # four segments
        assert not worker.failed.is_set()


async def test_when_the_device_is_lost_in_a_second_try_the_rest_of_the_batch_hears_of_it():
    tried = []

    def hook(k, value):
        if k == 0 and len(value) > 1:
            raise RuntimeError("this value is poison")
        tried.append(k)
        raise RuntimeError("CUDA error: device-side assert triggered")

    hook, switch = after_warm_up(hook)
    async with served(a_prepared_model(hook=hook), serving={"maxBatch": 4, "maxDelayMs": 200}) as (worker, c, _):
        switch["on"] = True
        answers = await asyncio.wait_for(asyncio.gather(*(c.post(URL, json=json_body(items(1))) for _ in range(4))), 50)
        assert ([answer.status_code for answer in answers], len(tried)) == ([503] * 4, 1)
        await asyncio.wait_for(worker.failed.wait(), 50)


async def test_a_device_without_memory_is_not_ready_until_a_pass_works_again():
    def full(k, value):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    hook, switch = after_warm_up(full)
    async with served(a_prepared_model(hook=hook)) as (_, c, _):
        switch["on"] = True
        failed = await c.post(URL, json=json_body(items(1)))
        assert (failed.status_code, "out of memory" in failed.json()["error"]) == (500, True)
        ready = lambda: c.get("/v2/health/ready")  # noqa: E731
        assert (await ready()).status_code == 503
        assert (await c.get("/v2/health/live")).status_code == 200
        switch["on"] = False

        async def well():
            return (await ready()).status_code == 200

        await eventually_async(well)
        assert (await ask(c, items(1)))["outputs"]


async def test_a_model_that_raises_on_one_request_stays_ready():
    x = items(1)
    x[0, 0] = POISON
    async with served(a_prepared_model(hook=no_unpoison)) as (_, c, _):
        assert (await c.post(URL, json=json_body(x))).status_code == 500
        assert (await c.get("/v2/health/ready")).status_code == 200


async def test_a_device_that_fails_every_trial_ends_the_worker(monkeypatch):
    monkeypatch.setattr(liveness, "UNWELL_S", 0.3)

    def full(k, value):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    hook, switch = after_warm_up(full)
    async with served(a_prepared_model(hook=hook)) as (worker, c, _):
        switch["on"] = True
        assert (await c.post(URL, json=json_body(items(1)))).status_code == 500
        await asyncio.wait_for(worker.failed.wait(), 50)
        assert "out of memory" in worker.lost


async def test_a_worker_whose_plans_cannot_be_followed_any_more_says_why_it_ends(monkeypatch):
    async def broken(*_):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(Heartbeat, "run", broken)
    async with a_worker(redis_url="redis://127.0.0.1:1/0") as (worker, http, _), client(http) as c:
        await asyncio.wait_for(worker.failed.wait(), 50)
        assert "a part of the worker failed: RuntimeError: no such thing" in worker.lost
        assert (await c.post(URL, json=json_body(items(1)))).status_code == 503
