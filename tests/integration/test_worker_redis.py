"""Feedback and plans over a real Redis that is killed, full, wiped and replaced while the worker serves."""

import asyncio
import json

import numpy as np
import pytest
import redis

from apparate.contract.resource import PlanStatus
from apparate.contract.stream import FIELD, PLAN_FIELD, feedback_key, plans_key, worker_key
from apparate.contract.wire import decode_feedback
from apparate.plan import Plan
from support.eventually import eventually_async
from support.infer import URL, ask, client, json_body
from support.models import a_prepared_model, a_worker, filled, items, only

pytestmark = pytest.mark.redis
MODEL = "default/tiny/local"
ALL = {"adaptation": {"shadowShare": 1.0}}
NONE = {"adaptation": {"shadowShare": 0.0}}


def connect(url):
    return redis.Redis.from_url(url, socket_timeout=5)


def entries(url):
    with connect(url) as r:
        return [decode_feedback(fields[FIELD]) for _, fields in r.xrange(feedback_key(MODEL))]


def publish(url, plan):
    with connect(url) as r:
        r.xadd(plans_key(MODEL), {PLAN_FIELD: PlanStatus.of(plan).model_dump_json(by_alias=True)})


def heartbeat(url, name="w1"):
    with connect(url) as r:
        return json.loads(r.get(worker_key(MODEL, name)) or b"{}")


async def in_force(worker, revision):
    await eventually_async(lambda: only(worker).keeper.plan.revision == revision)


async def test_every_active_ramp_reports_on_every_request_also_past_its_exit(redis_server):
    prepared = a_prepared_model(sharp=3.0)
    plan = Plan.of(5, [0, 2], [1.0, 0.5], "tiny")
    async with a_worker(prepared, redis_url=redis_server, plan=plan, **NONE) as (worker, http, _), client(http) as c:
        filled(worker)
        answers = [await ask(c, row[None]) for row in items(5)]
        found = await eventually_async(lambda: (got := entries(redis_server)) and len(got) == 5 and got)
    assert [one.seq for one in found] == [0, 1, 2, 3, 4]
    for one, answer in zip(found, answers, strict=True):
        assert (one.model, one.worker, one.revision, one.catalog) == (MODEL, "w1", 5, "tiny")
        assert (one.ramps, one.shadow, one.padded_size) == ((0, 2), (False, False), 1)
        assert one.exits.tolist() == [answer["parameters"]["exit_ramp"]] == [0]
        assert one.labels[0, 0] == answer["outputs"][1]["data"][0]
        assert one.released_ms[0] > 0
        assert one.service_ms > 0


async def test_ramps_that_are_switched_off_report_as_shadows(redis_server):
    prepared = a_prepared_model()
    one = Plan.of(1, [1], [0.0], "tiny")
    async with a_worker(prepared, redis_url=redis_server, plan=one, **ALL) as (worker, http, _), client(http) as c:
        await ask(c, items(1))
        (shadowed,) = await eventually_async(lambda: entries(redis_server))
        only(worker).apply(Plan.of(2, [0, 1, 2], [0.0] * 3, "tiny"))
        await ask(c, items(1))
        active = (await eventually_async(lambda: (got := entries(redis_server)) and len(got) == 2 and got))[1]
    assert (shadowed.ramps, shadowed.shadow, active.shadow) == ((0, 1, 2), (True, False, True), (False,) * 3)
    np.testing.assert_allclose(shadowed.errors, active.errors, atol=1e-5)
    np.testing.assert_array_equal(shadowed.labels, active.labels)


async def test_shadows_are_a_share_of_the_passes(redis_server):
    plan, share = Plan.of(1, [0], [0.001], "tiny"), {"shadowShare": 0.25}
    async with a_worker(redis_url=redis_server, plan=plan, adaptation=share) as (_, http, _), client(http) as c:
        for row in items(200):
            await ask(c, row[None])
        found = await eventually_async(lambda: (got := entries(redis_server)) and len(got) == 200 and got)
    assert 20 < sum(any(one.shadow) for one in found) < 85


async def test_a_plan_is_in_force_soon_after_it_is_published_and_the_newest_one_at_start(redis_server):
    publish(redis_server, Plan.of(1, [0], [0.5], "tiny"))
    publish(redis_server, Plan.of(2, [1], [0.5], "tiny"))
    async with a_worker(redis_url=redis_server) as (worker, http, _), client(http) as c:
        await in_force(worker, 2)
        publish(redis_server, Plan.of(3, [2], [0.5], "tiny"))
        await in_force(worker, 3)
        assert (await ask(c, items(1)))["parameters"]["plan_revision"] == 3
        await eventually_async(lambda: heartbeat(redis_server).get("revision") == 3)


async def test_a_hundred_plans_under_load_cost_no_request_and_no_restart(redis_server):
    async with a_worker(redis_url=redis_server) as (worker, http, _), client(http) as c:
        stop = asyncio.Event()

        async def keep_asking():
            answers = []
            while not stop.is_set():
                answers.append(await c.post(URL, json=json_body(items(1))))
            return answers

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        for revision in range(1, 101):
            publish(redis_server, Plan.of(revision, [revision % 3], [revision / 100], "tiny"))
            await asyncio.sleep(0.01)
            if revision % 10 == 0:
                await in_force(worker, revision)
                before = only(worker).serving.served
                await eventually_async(lambda before=before: only(worker).serving.served > before + 8)
        stop.set()
        answers = [one for some in await asyncio.gather(*asking) for one in some]
    assert {one.status_code for one in answers} == {200}
    revisions = [one.json()["parameters"]["plan_revision"] for one in answers]
    assert len(set(revisions)) >= 10
    assert max(revisions) <= 100


async def test_a_bad_plan_changes_nothing_and_is_counted(redis_server):
    good = Plan.of(4, [0], [0.5], "tiny")
    async with a_worker(redis_url=redis_server, plan=good) as (worker, http, _), client(http) as c:
        publish(redis_server, Plan.of(5, [0], [0.5], "another catalog"))
        text = 'apparate_plans_refused_total{model="tiny",namespace="default",reason="catalog"} 1.0'

        async def counted():
            return text in (await c.get("/metrics")).text

        await eventually_async(counted)
        assert (await ask(c, items(1)))["parameters"]["plan_revision"] == 4
        publish(redis_server, Plan.of(6, [1], [0.5], "tiny"))
        await in_force(worker, 6)


async def test_serving_goes_on_while_redis_is_dead_and_feedback_resumes_when_it_is_back(own_redis):
    async with a_worker(redis_url=own_redis.url, **NONE) as (worker, http, _), client(http) as c:
        for row in items(3):
            await ask(c, row[None])
        await eventually_async(lambda: len(entries(own_redis.url)) == 3)
        own_redis.kill9()
        for row in items(20):
            await asyncio.wait_for(ask(c, row[None]), 50)
        own_redis.start()
        found = await eventually_async(lambda: (got := entries(own_redis.url)) and len(got) >= 20 and got)
        assert [one.seq for one in found] == list(range(3, 23))
        publish(own_redis.url, Plan.of(1, [0], [0.5], "tiny"))
        await in_force(worker, 1)
        await eventually_async(lambda: heartbeat(own_redis.url).get("revision") == 1)


async def test_serving_does_not_wait_for_a_redis_that_hangs(own_redis):
    async with a_worker(redis_url=own_redis.url, **NONE) as (worker, http, _), client(http) as c:
        await ask(c, items(1))
        own_redis.freeze()
        try:
            async with asyncio.timeout(20):  # each would wait for 2 s
                for row in items(30):
                    await ask(c, row[None])
        finally:
            own_redis.thaw()
        found = await eventually_async(lambda: {one.seq for one in entries(own_redis.url)} == set(range(31)))
        assert found
        assert only(worker).dropped == 0


async def test_a_full_redis_costs_feedback_and_no_request(redis_server):
    with connect(redis_server) as r:
        r.config_set("maxmemory", "1")
        r.config_set("maxmemory-policy", "noeviction")
    try:
        async with a_worker(redis_url=redis_server, **NONE) as (worker, http, _), client(http) as c:
            for row in items(20):
                await ask(c, row[None])
            await eventually_async(lambda: only(worker).dropped > 0)
            with connect(redis_server) as r:
                r.config_set("maxmemory", "0")
            await ask(c, items(1))
            await eventually_async(lambda: entries(redis_server))
            assert "apparate_feedback_dropped_total" in (await c.get("/metrics")).text
    finally:
        with connect(redis_server) as r:
            r.config_set("maxmemory", "0")


async def test_a_wiped_redis_does_not_stop_feedback_or_later_plans(redis_server):
    publish(redis_server, Plan.of(7, [0], [0.5], "tiny"))
    async with a_worker(redis_url=redis_server, **NONE) as (worker, http, _), client(http) as c:
        await in_force(worker, 7)
        with connect(redis_server) as r:
            r.flushall()
            # An id far below the last one read: a replaced server whose clock is behind.
            document = PlanStatus.of(Plan.of(8, [1], [0.5], "tiny")).model_dump_json(by_alias=True)
            r.xadd(plans_key(MODEL), {PLAN_FIELD: document}, id="5-1")
        await in_force(worker, 8)
        await ask(c, items(1))
        await eventually_async(lambda: entries(redis_server))


async def test_after_a_wipe_a_lower_revision_is_refused(redis_server):
    publish(redis_server, Plan.of(7, [0], [0.5], "tiny"))
    async with a_worker(redis_url=redis_server, **NONE) as (worker, http, _), client(http) as c:
        await in_force(worker, 7)
        with connect(redis_server) as r:
            r.flushall()
        publish(redis_server, Plan.of(1, [1], [0.5], "tiny"))
        publish(redis_server, Plan.of(9, [1], [0.5], "tiny"))
        await in_force(worker, 9)
        assert (await ask(c, items(1)))["parameters"]["plan_revision"] == 9


async def test_keys_expire_when_nobody_renews_them(redis_server):
    async with a_worker(redis_url=redis_server, **NONE) as (_, http, _), client(http) as c:
        await ask(c, items(1))
        await eventually_async(lambda: entries(redis_server))
        with connect(redis_server) as r:
            assert r.ttl(feedback_key(MODEL)) > 3600
            await eventually_async(lambda: 0 < r.ttl(worker_key(MODEL, "w1")) <= 10)


async def test_a_stopped_worker_takes_its_heartbeat_away_and_leaves_all_its_feedback(redis_server):
    async with a_worker(redis_url=redis_server, **NONE) as (_, http, _), client(http) as c:
        await asyncio.gather(*(c.post(URL, json=json_body(row[None])) for row in items(50)))
        await eventually_async(lambda: heartbeat(redis_server))
    assert heartbeat(redis_server) == {}
    assert sum(len(one) for one in entries(redis_server)) == 50


async def test_the_alarm_of_the_guard_is_told_to_the_controller(redis_server):
    prepared = a_prepared_model(sharp=5.0)
    plan = Plan.of(1, [0], [1.0], "tiny")
    async with a_worker(prepared, redis_url=redis_server, plan=plan, **NONE) as (worker, http, _), client(http) as c:
        filled(worker)
        for row in items(400):
            await ask(c, row[None])
        await eventually_async(lambda: any(one.guarded for one in entries(redis_server)))
        await eventually_async(lambda: heartbeat(redis_server).get("guarded"))
