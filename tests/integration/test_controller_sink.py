"""The contract of plan sinks: on the fake, on Redis and on the status of an object in a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest

from apparate.contract.resource import PlanStatus
from apparate.contract.stream import KEY_TTL_S, PLAN_FIELD, PLANS_MAX_ENTRIES, plans_key
from apparate.plan import Plan
from apparate.service.redis_client import connect
from apparate_controller.errors import PlanRefused, PlanUnreadable
from apparate_controller.ports import PlanSink
from apparate_controller.sinks.redis import RedisPlanSink
from apparate_controller.sinks.status import StatusSink
from support.control import CATALOG, MODEL
from support.fakes import FakePlanSink
from support.objects import Objects

pytestmark = pytest.mark.redis


def a_plan(revision: int, threshold: float = 0.5) -> PlanStatus:
    return PlanStatus.of(Plan.of(revision, [1], [threshold], CATALOG.digest), CATALOG.layers, reason="ThresholdsTuned")


@contextlib.asynccontextmanager
async def a_client(url):
    client = connect(url)
    try:
        yield client
    finally:
        await client.aclose()


@pytest.fixture(params=["fake", "redis", pytest.param("status", marks=pytest.mark.cluster)])
async def sink(request) -> AsyncIterator[PlanSink]:
    if request.param == "fake":
        yield FakePlanSink()
        return
    if request.param == "status":
        request.getfixturevalue("crd")
        objects = Objects(request.getfixturevalue("control_plane"), request.getfixturevalue("namespace"))
        yield StatusSink(objects.client, objects.create(), every_s=0.05)
        return
    async with a_client(request.getfixturevalue("redis_server")) as client:
        yield RedisPlanSink(client, MODEL)


async def test_before_the_first_plan_none_is_in_force(sink):
    assert await sink.current() is None


async def test_a_published_plan_is_in_force_as_it_was(sink):
    assert await sink.publish(a_plan(1))
    assert await sink.current() == a_plan(1)


async def test_an_equal_plan_is_not_written_again(sink):
    await sink.publish(a_plan(1))
    assert not await sink.publish(a_plan(1))


async def test_the_same_settings_under_a_new_revision_are_a_new_plan(sink):
    await sink.publish(a_plan(1))
    assert await sink.publish(a_plan(2))


@pytest.mark.parametrize("late", [a_plan(1), a_plan(2, threshold=0.1)])
async def test_a_plan_that_is_not_newer_is_refused(sink, late):
    await sink.publish(a_plan(2))
    with pytest.raises(PlanRefused, match=f"revision {late.revision} cannot be published, revision 2 is in force"):
        await sink.publish(late)


async def test_plans_that_were_in_force_before_are_the_history_newest_first(sink):
    for revision in (1, 2, 4):
        await sink.publish(a_plan(revision))
    assert await sink.history() == [a_plan(2), a_plan(1)]


async def test_history_is_bounded_and_expires_when_nobody_looks(redis_server):
    async with a_client(redis_server) as client:
        sink = RedisPlanSink(client, MODEL)
        for revision in range(PLANS_MAX_ENTRIES + 300):
            await client.xadd(plans_key(MODEL), {PLAN_FIELD: a_plan(revision).model_dump_json()}, maxlen=1300)
        await sink.publish(a_plan(5000))
        assert await client.xlen(plans_key(MODEL)) <= PLANS_MAX_ENTRIES + 100  # MAXLEN ~ keeps whole nodes
        assert 0 < await client.ttl(plans_key(MODEL)) <= KEY_TTL_S


async def test_an_entry_that_is_no_plan_is_named_and_replaced(redis_server):
    async with a_client(redis_server) as client:
        sink = RedisPlanSink(client, MODEL)
        await client.xadd(plans_key(MODEL), {PLAN_FIELD: b"{}"})
        with pytest.raises(PlanUnreadable, match="is no plan"):
            await sink.current()
        assert await sink.publish(a_plan(1))
