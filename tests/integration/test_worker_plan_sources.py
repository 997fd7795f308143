"""The contract of plan sources: on Redis, and on the status of an object in a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
import redis

from apparate.contract.document import Document
from apparate.contract.resource import EarlyExitModel, PlanStatus
from apparate.contract.stream import PLAN_FIELD, plans_key
from apparate.plan import Plan
from apparate_worker.objects import NOWHERE, ObjectPlanSource
from apparate_worker.plans import RedisPlanSource
from support.eventually import eventually_async
from support.objects import Objects, a_client

MODEL = "default/tiny/local"


class OnRedis:
    """Plans in a stream."""

    def __init__(self, url):
        self.url = url
        self.source = RedisPlanSource(url, plans_key(MODEL))

    def publish(self, plan):
        with redis.Redis.from_url(self.url, socket_timeout=5) as client:
            client.xadd(plans_key(MODEL), {PLAN_FIELD: PlanStatus.of(plan).model_dump_json(by_alias=True)})


class OnAnObject:
    """Plans in a status, read with the rights of a worker's pod."""

    def __init__(self, cluster, namespace):
        self.objects = Objects(cluster, namespace)
        document = Document(EarlyExitModel.model_validate(self.objects.create()), NOWHERE)
        self.source = ObjectPlanSource(a_client(cluster, self.objects.reader_of()), document)

    def publish(self, plan):
        self.objects.put_plan(plan)


@pytest.fixture(
    params=[pytest.param("redis", marks=pytest.mark.redis), pytest.param("object", marks=pytest.mark.cluster)]
)
def place(request):
    if request.param == "redis":
        return OnRedis(request.getfixturevalue("redis_server"))
    request.getfixturevalue("crd")
    return OnAnObject(request.getfixturevalue("control_plane"), request.getfixturevalue("namespace"))


@contextlib.asynccontextmanager
async def following(place):
    """Revisions as they come."""
    seen = []

    async def follow():
        async for document in place.source.plans():
            seen.append(json.loads(document)["revision"])

    task = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await place.source.close()


def a_plan(revision):
    return Plan.of(revision, [0], [0.5], "tiny")


async def test_the_newest_plan_comes_first(place):
    place.publish(a_plan(1))
    place.publish(a_plan(2))
    async with following(place) as seen:
        await eventually_async(lambda: seen == [2])


async def test_before_the_first_plan_none_comes_and_then_each(place):
    async with following(place) as seen:
        await asyncio.sleep(0.2)
        assert seen == []
        for revision in (1, 2, 3):
            place.publish(a_plan(revision))
            await eventually_async(lambda wanted=revision: seen[-1:] == [wanted])
        assert seen == [1, 2, 3]


async def test_whatever_is_there_is_told_also_what_no_worker_can_run(place):
    async with following(place) as seen:
        place.publish(Plan.of(4, [7], [0.5], "another catalog"))
        await eventually_async(lambda: seen == [4])
