"""A control loop on a redis-server that is killed, wiped, cut off and failed over; the books must balance."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
import redis as sync_redis

from apparate.contract.stream import (
    FEEDBACK_MAX_ENTRIES,
    FIELD,
    KEY_TTL_S,
    feedback_key,
    plans_key,
    worker_key,
    workers_key,
)
from support.control import MODEL, a_loop, payload, producing
from support.eventually import eventually_async
from support.redis import a_redis_server
from support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.redis
STREAM = feedback_key(MODEL)


async def balanced(running, producer, within=10):
    await eventually_async(lambda: running.accounted() == producer.produced, within=within)
    fed = running.session.fed
    assert len(set(fed)) == len(fed)


async def test_repeats_are_counted_once_each_and_never_fed(redis_server):
    async with a_loop(redis_server) as running:
        with producing(redis_server) as producer:
            producer.send(20)
            for seq in (3, 7, 7):
                producer.repeat(seq)
            await eventually_async(lambda: running.loop.progress.totals.duplicates == 3)
            await balanced(running, producer)


async def test_redis_killed_and_restarted_without_its_data(own_redis):
    async with a_loop(own_redis.url) as running:
        with producing(own_redis.url) as producer:
            producer.send(60)
            await eventually_async(lambda: running.loop.progress.totals.batches == 60)
            own_redis.kill9()
            producer.send(5)
            await eventually_async(lambda: running.observer.errors)
            own_redis.start()
            producer.send(40)
            await balanced(running, producer)
            assert (producer.dropped, running.loop.progress.totals.lost) == (5, 5)
            assert await running.loop._ports.sink.current() is not None


async def test_everything_flushed_away_under_a_running_controller(own_redis):
    async with a_loop(own_redis.url) as running:
        with producing(own_redis.url) as producer:
            producer.send(60)
            await eventually_async(lambda: running.loop.progress.totals.batches == 60)
            ran = running.session.plan
            producer.send(1, revision=ran.revision)
            await balanced(running, producer)
            own_redis.flush()
            producer.send(10, revision=ran.revision)
            await balanced(running, producer)
            await eventually_async(lambda: producer.client.xlen(plans_key(MODEL)))
            plan = await running.loop._ports.sink.current()
            assert plan is not None and plan.revision > ran.revision
            assert plan.to_plan().same_settings(ran)
            assert running.loop.progress.totals.lost == 0


async def test_a_wiped_group_costs_nothing(redis_server):
    async with a_loop(redis_server) as running:
        with producing(redis_server) as producer:
            producer.send(20)
            await eventually_async(lambda: running.loop.progress.totals.batches == 20)
            producer.client.xgroup_destroy(STREAM, "apparate-controller")
            producer.send(20)
            await balanced(running, producer)
            assert running.loop.progress.totals.lost == 0


async def test_a_controller_killed_between_reading_and_acking_counts_everything_once(redis_server):
    with producing(redis_server) as producer:
        for _ in range(5):
            async with a_loop(redis_server) as running:
                producer.send(30)
                await eventually_async(lambda running=running: running.loop.progress.totals.batches > 0)
                await running.kill()
        async with a_loop(redis_server) as running:
            await eventually_async(lambda: running.accounted() == producer.produced)
            totals = running.loop.progress.totals
            assert (totals.batches, totals.lost, totals.duplicates) == (150, 0, 0)
            assert totals.records == 600
            assert len(running.session.window) == 600


async def test_entries_trimmed_before_they_were_acked_are_declared_lost(redis_server):
    with producing(redis_server) as producer:
        async with a_loop(redis_server) as running:
            producer.send(10)
            await eventually_async(lambda: running.loop.progress.totals.batches == 10)
        producer.send(10)
        reader = sync_redis.Redis.from_url(redis_server)
        reader.xreadgroup("apparate-controller", "controller", {STREAM: ">"}, count=10)  # read, never acked
        reader.xtrim(STREAM, maxlen=0)
        producer.send(1)
        async with a_loop(redis_server) as running:
            await balanced(running, producer)
            await eventually_async(lambda: reader.xpending(STREAM, "apparate-controller")["pending"] == 0)
            assert running.loop.progress.totals.lost == 10
        reader.close()


async def test_a_half_open_connection_is_noticed_and_replaced(redis_server):
    port = urlsplit(redis_server).port
    async with TcpProxy(port) as proxy, a_loop(proxy.url(redis_server), block_s=0.3) as running:
        with producing(redis_server) as producer:
            producer.send(10)
            await eventually_async(lambda: running.loop.progress.totals.batches == 10)
            proxy.swallow()
            producer.send(10)
            await eventually_async(lambda: running.observer.errors, within=10)
            proxy.resume()
            await balanced(running, producer, within=15)
            assert running.loop.progress.totals.lost == 0


async def test_a_replica_promoted_in_the_middle_counts_nothing_twice(own_redis):
    password = urlsplit(own_redis.url).password
    with (
        a_redis_server() as replica,
        producing(own_redis.url) as producer,
        sync_redis.Redis.from_url(replica.url) as client,
    ):
        for name in ("masterauth", "requirepass"):
            client.config_set(name, password)
        client.replicaof("127.0.0.1", own_redis.port)
        await eventually_async(lambda: client.info("replication")["master_link_status"] == "up", within=10)
        async with TcpProxy(own_redis.port) as proxy, a_loop(proxy.url(own_redis.url)) as running:
            producer.send(50)
            await eventually_async(lambda: running.loop.progress.totals.batches == 50)
            own_redis.kill9()
            client.replicaof("NO", "ONE")
            proxy.target = replica.port
            proxy.cut()
            with producing(own_redis.url.replace(str(own_redis.port), str(replica.port))) as heir:
                heir.produced = producer.produced
                heir.send(50)
                await balanced(running, heir)


async def test_a_long_outage_turns_the_loop_without_busy_waiting(own_redis):
    async with a_loop(own_redis.url) as running:
        await eventually_async(lambda: running.observer.recoveries)
        own_redis.kill9()
        await eventually_async(lambda: len(running.observer.errors) >= 2)
        await asyncio.sleep(3)
        assert len(running.observer.errors) <= 30
        own_redis.start()
        await eventually_async(lambda: not running.loop.problem, within=5)


async def test_memory_stays_below_its_bound_and_every_key_expires(own_redis):
    entry = payload(0, n=32)
    with sync_redis.Redis.from_url(own_redis.url) as client:
        async with a_loop(own_redis.url, every=10_000) as running:
            sizes = []
            for round_ in range(4):
                pipeline = client.pipeline(transaction=False)
                for i in range(FEEDBACK_MAX_ENTRIES // 2):
                    data = entry if i else payload(round_, n=32)
                    pipeline.xadd(STREAM, {FIELD: data}, maxlen=FEEDBACK_MAX_ENTRIES, approximate=True)
                await asyncio.to_thread(pipeline.execute)
                sizes.append(client.memory_usage(STREAM))
            client.expire(STREAM, KEY_TTL_S)
            await eventually_async(lambda: running.loop.progress.totals.batches == 4, within=20)
            assert max(sizes) < 2 * FEEDBACK_MAX_ENTRIES * len(entry)
            assert sizes[3] < 1.1 * sizes[2]
            assert all(client.ttl(key) > 0 for key in client.scan_iter())


async def test_a_new_controller_without_any_plan_numbers_above_the_workers(redis_server):
    with sync_redis.Redis.from_url(redis_server) as client, producing(redis_server) as producer:
        client.set(worker_key(MODEL, "w"), b'{"revision": 41}', ex=10)
        client.sadd(workers_key(MODEL), "w")
        producer.send(3, revision=41)
        async with a_loop(redis_server) as running:
            await eventually_async(lambda: client.xlen(plans_key(MODEL)))
            await balanced(running, producer)
            assert running.session.plan.revision > 41
