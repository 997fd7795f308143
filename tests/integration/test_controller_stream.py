"""The feedback source on a real redis-server: groups, unacked entries, trimmed entries, takeovers."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from redis.exceptions import ResponseError

from apparate.contract.stream import FIELD, GROUP, feedback_key, state_key, worker_key, workers_key
from apparate.service.redis_client import connect
from apparate_controller.progress import NOWHERE
from apparate_controller.sources.heartbeats import RedisHeartbeats, WorkerState
from apparate_controller.sources.redis_stream import RedisFeedbackSource, eviction_risk
from support.control import MODEL

pytestmark = pytest.mark.redis
STREAM = feedback_key(MODEL)


@contextlib.asynccontextmanager
async def a_source(url, *, consumer="controller", block_s=0.2, count=200):
    reader, commands = connect(url, block_s=block_s), connect(url)
    try:
        yield (
            RedisFeedbackSource(reader, commands, MODEL, consumer=consumer, block_s=block_s, count=count),
            commands,
        )
    finally:
        await reader.aclose()
        await commands.aclose()


async def add(client, *payloads: bytes) -> list[str]:
    return [(await client.xadd(STREAM, {FIELD: one})).decode() for one in payloads]


async def test_entries_written_before_the_first_controller_are_read(redis_server):
    async with a_source(redis_server) as (source, client):
        await add(client, b"a", b"b")
        await source.open(NOWHERE)
        assert [entry.payload for entry in await source.read()] == [b"a", b"b"]


async def test_opening_again_keeps_the_group(redis_server):
    async with a_source(redis_server) as (source, client):
        await source.open(NOWHERE)
        ids = await add(client, b"a")
        await source.read()
        await source.commit(ids, {"last_id": ids[0]})
        assert await source.open(ids[0]) == ids[0]
        assert await source.read() == []


async def test_a_read_wakes_at_once_when_feedback_comes(redis_server):
    async with a_source(redis_server, block_s=30) as (source, client):
        await source.open(NOWHERE)
        reading = asyncio.create_task(source.read())
        await asyncio.sleep(0.05)
        await add(client, b"a")
        assert len(await asyncio.wait_for(reading, 20)) == 1


async def test_an_idle_stream_gives_no_exception_however_often_a_read_waits(redis_server):
    async with a_source(redis_server, block_s=0.1) as (source, _):
        await source.open(NOWHERE)
        assert [await source.read() for _ in range(20)] == [[]] * 20


async def test_a_read_longer_than_the_librarys_own_timeout_just_waits(redis_server):
    async with a_source(redis_server, block_s=6) as (source, _):  # redis-py's default gives up after 5 s
        await source.open(NOWHERE)
        assert await source.read() == []


async def test_unacked_entries_come_first_after_reopening(redis_server):
    async with a_source(redis_server, count=2) as (source, client):
        await source.open(NOWHERE)
        await add(client, b"a", b"b", b"c")
        await source.read()
        await source.open(NOWHERE)
        assert [[e.payload for e in await source.read()] for _ in range(2)] == [[b"a", b"b"], [b"c"]]


async def test_trimmed_entries_come_without_payload_and_can_be_acked(redis_server):
    async with a_source(redis_server) as (source, client):
        await source.open(NOWHERE)
        await add(client, b"a", b"b")
        await source.read()
        await client.xtrim(STREAM, maxlen=0)
        await source.open(NOWHERE)
        left = await source.read()
        await source.commit([entry.id for entry in left], {"last_id": "0-0"})
        assert ([entry.payload for entry in left], (await source.backlog()).pending) == ([None, None], 0)


@pytest.mark.parametrize("trimmed", [False, True])
async def test_a_dead_consumers_entries_are_taken_over_and_it_is_removed(redis_server, trimmed):
    async with a_source(redis_server, consumer="dead") as (dead, client):
        await dead.open(NOWHERE)
        await add(client, *[b"x"] * 250)
        await dead.read()
        await dead.read()
        if trimmed:
            await client.xtrim(STREAM, maxlen=0)
    async with a_source(redis_server, consumer="heir", count=500) as (heir, client):
        await heir.open(NOWHERE)
        taken = await heir.read()
        await heir.commit([entry.id for entry in taken], {"last_id": "0-0"})
        consumers = [c["name"] for c in await client.xinfo_consumers(STREAM, GROUP)]
        assert (len(taken) == 250 or trimmed, consumers, (await heir.backlog()).pending) == (True, [b"heir"], 0)


async def test_a_wiped_group_is_made_again_where_reading_had_come_to(redis_server):
    async with a_source(redis_server) as (source, client):
        await source.open(NOWHERE)
        ids = await add(client, b"a", b"b")
        await source.read()
        await client.xgroup_destroy(STREAM, GROUP)
        with pytest.raises(ResponseError, match="NOGROUP"):
            await source.read()
        await source.open(ids[0])
        assert [entry.payload for entry in await source.read()] == [b"b"]


async def test_a_stream_that_counts_anew_is_read_from_its_start(redis_server):
    async with a_source(redis_server) as (source, client):
        await client.xadd(STREAM, {FIELD: b"a"}, id="5-0")
        assert await source.open("9999999999999-0") == NOWHERE
        assert [entry.payload for entry in await source.read()] == [b"a"]


async def test_progress_and_acks_are_stored_together(redis_server):
    async with a_source(redis_server) as (source, client):
        await source.open(NOWHERE)
        ids = await add(client, b"a")
        await source.read()
        await source.commit(ids, {"last_id": ids[0], "worker:w": "{}"})
        await source.commit([], {"last_id": ids[0]}, forgotten=["worker:w"])
        assert (await source.load(), await client.ttl(state_key(MODEL)) > 0) == ({"last_id": ids[0]}, True)


async def test_history_gives_everything_up_to_an_entry_newest_first(redis_server):
    async with a_source(redis_server, count=2) as (source, client):
        ids = await add(client, *(str(i).encode() for i in range(6)))
        pages = [[entry.payload for entry in page] async for page in source.history(ids[4])]
        assert pages == [[b"4", b"3"], [b"2", b"1"], [b"0"]]


async def test_the_backlog_tells_what_waits(redis_server):
    async with a_source(redis_server, count=1) as (source, client):
        await source.open(NOWHERE)
        await add(client, b"a", b"b", b"c")
        await source.read()
        found = await source.backlog()
        assert (found.lag, found.pending, found.length) == (2, 1, 3)


async def test_workers_are_those_whose_heartbeats_live(redis_server):
    async with a_source(redis_server) as (_, client):
        beat = {"worker": "a", "revision": 4, "in_flight": 2, "guarded": True}
        await client.set(worker_key(MODEL, "a"), json.dumps(beat), ex=10)
        await client.set(worker_key(MODEL, "b"), b"not json", ex=10)
        await client.set(worker_key(MODEL, "gone"), json.dumps(beat), px=1)
        await client.set(worker_key("default/other/local", "c"), json.dumps(beat), ex=10)
        await client.sadd(workers_key(MODEL), "a", "b", "gone")
        await client.sadd(workers_key("default/other/local"), "c")
        await asyncio.sleep(0.02)
        assert await RedisHeartbeats(client, MODEL).workers() == (WorkerState("a", 4, 2, True), WorkerState("b"))
        assert await client.smembers(workers_key(MODEL)) == {b"a", b"b"}


@pytest.mark.parametrize(("policy", "risky"), [("noeviction", False), ("allkeys-lru", True), ("volatile-ttl", True)])
async def test_an_eviction_policy_that_can_take_streams_is_a_risk(own_redis, policy, risky):
    async with a_source(own_redis.url) as (_, client):
        await client.config_set("maxmemory-policy", policy)
        assert (policy in await eviction_risk(client)) is risky
