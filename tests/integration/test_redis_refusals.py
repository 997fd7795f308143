"""What a real Redis refuses is told in words that say so, by everybody who talks to it."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
import redis
from structlog.testing import capture_logs

from apparate.contract.stream import feedback_key
from apparate.service.redis_client import connect, failing
from apparate_worker.feedback import RedisSender
from apparate_worker.plans import RedisPlanSource
from support.eventually import eventually, eventually_async

pytestmark = pytest.mark.redis
REFUSED = "Redis refuses the user or the password"


def url_of(server: str, login: str) -> str:
    """The same server with another user and password."""
    return f"redis://{login}{'@' if login else ''}127.0.0.1:{urlsplit(server).port}/0"


@pytest.fixture
def reader(redis_server):
    """URL of a user that may read and not write."""
    with redis.Redis.from_url(redis_server) as admin:
        admin.acl_setuser("reader", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@read", "+@connection"])
        yield url_of(redis_server, "reader:pw")
        admin.acl_deluser("reader")


@pytest.mark.parametrize("login", ["", ":wrong", "nobody:wrong"])
async def test_a_password_that_is_missing_or_wrong_is_no_silence(redis_server, login):
    client = connect(url_of(redis_server, login))
    with pytest.raises(redis.RedisError) as refused:
        await client.get("k")
    await client.aclose()
    said = failing(refused.value)
    assert (REFUSED in said.words, said.silent, "wrong" in said.words) == (True, False, False), said


@pytest.mark.parametrize("transaction", [True, False])
async def test_a_right_that_is_missing_is_no_silence(reader, transaction):
    client = connect(reader)
    with pytest.raises(redis.RedisError) as refused:
        async with client.pipeline(transaction=transaction) as pipeline:
            pipeline.set("k", "a secret")
            await pipeline.execute()
    await client.aclose()
    said = failing(refused.value)
    assert ("does not let this user do that" in said.words, said.silent, "secret" in said.words) == (True, False, False)


async def test_a_server_that_is_not_there_is_silent():
    client = connect("redis://127.0.0.1:1/0")
    with pytest.raises(redis.RedisError) as refused:
        await client.get("k")
    await client.aclose()
    assert failing(refused.value).silent


def test_a_worker_says_once_why_its_feedback_is_not_taken(redis_server):
    sender = RedisSender(url_of(redis_server, ":wrong"), feedback_key("default/m/local"))
    with capture_logs() as lines:
        sender.start()
        sender.offer([b"entry"])
        eventually(lambda: lines)
        sender.stop(3)
    assert [REFUSED in line["error"] for line in lines] == [True]


async def test_a_worker_says_once_why_it_gets_no_plans(redis_server):
    source = RedisPlanSource(url_of(redis_server, ":wrong"), "k")
    with capture_logs() as lines:
        reading = asyncio.ensure_future(anext(source.plans()))
        await eventually_async(lambda: lines)
        await asyncio.sleep(0.5)  # some more attempts
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await source.close()
    assert [REFUSED in line["error"] for line in lines] == [True]
