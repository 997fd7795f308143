"""The controller's share of a status, written to a real API server."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime

import pytest

from apparate.contract.conditions import ConditionType, Reason, condition
from apparate.contract.resource import Delivery, PlanStatus
from apparate.plan import MAX_REVISION, Plan
from apparate.service.kube import MERGE, KubeError, model_path
from apparate_controller.errors import PlanRefused
from apparate_controller.sinks.status import StatusSink
from support.control import CATALOG
from support.eventually import eventually_async
from support.objects import Objects

pytestmark = pytest.mark.cluster
ALL = {0: 0.1, 1: 0.2, 2: 0.3}


@pytest.fixture
def objects(control_plane, namespace, crd):
    found = Objects(control_plane, namespace)
    found.create()
    return found


def a_plan(revision: int, ramps: dict[int, float] | None = None) -> PlanStatus:
    ramps = ramps or {1: 0.5}
    plan = Plan.of(revision, ramps.keys(), ramps.values(), CATALOG.digest)
    return PlanStatus.of(plan, CATALOG.layers, reason="ThresholdsTuned", message=f"m{revision}")


def delivery(updated: int) -> Delivery:
    return Delivery(revision=1, workers=9, updated_workers=updated)


def flowing(holds: bool | None, message: str = ""):
    return condition(ConditionType.FEEDBACK_FLOWING, holds, Reason.FLOWING, message, now=datetime.now(UTC))


@contextlib.asynccontextmanager
async def writing(objects: Objects, **options):
    wrote = []
    sink = StatusSink(objects.client, objects.get(), wrote=lambda: wrote.append(1), **options)
    task = asyncio.create_task(sink.run())
    try:
        yield sink, wrote
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_controllers_share_stands_beside_the_operators(objects):
    objects.prepare()
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        sink.report(delivery=delivery(2), conditions=[flowing(True)])
        await eventually_async(lambda: objects.condition("FeedbackFlowing"))
    status = objects.status()
    assert (status["plan"]["revision"], status["delivery"]["updatedWorkers"]) == (1, 2)
    assert {one["type"] for one in status["conditions"]} == {"Prepared", "FeedbackFlowing"}
    managers = {e["manager"]: e["fieldsV1"] for e in objects.get()["metadata"]["managedFields"]}
    assert "f:plan" in managers["apparate-controller"]["f:status"]
    assert "f:plan" not in managers["apparate-operator"]["f:status"]


async def test_the_first_write_after_a_quiet_second_does_not_wait_and_the_next_does(objects):
    async with writing(objects, every_s=1.0) as (sink, _):
        loop = asyncio.get_running_loop()
        await sink.publish(a_plan(1))
        first = loop.time()
        await sink.publish(a_plan(2))
        assert loop.time() - first > 0.9


async def test_what_is_reported_more_often_than_may_be_written_is_written_once_and_the_newest_wins(objects):
    async with writing(objects, every_s=3.0) as (sink, wrote):  # far longer than the reports take on a busy machine
        await sink.publish(a_plan(1))
        for updated in range(8):
            sink.report(delivery=delivery(updated))
            await asyncio.sleep(0.02)
        await eventually_async(lambda: objects.status().get("delivery", {}).get("updatedWorkers") == 7, within=15)
        await eventually_async(lambda: len(wrote) == 2)  # others see a write before its answer is back here


async def test_what_is_there_already_is_not_written(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        sink.report(delivery=delivery(1), conditions=[flowing(True)])
        await eventually_async(lambda: objects.condition("FeedbackFlowing"))
        version = objects.get()["metadata"]["resourceVersion"]
        for _ in range(5):
            sink.report(delivery=delivery(1), conditions=[flowing(True)])
            await asyncio.sleep(0.06)
        assert objects.get()["metadata"]["resourceVersion"] == version


async def test_a_new_controller_goes_on_from_the_status_and_writes_nothing(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        await sink.publish(a_plan(2))
        sink.report(delivery=delivery(1), conditions=[flowing(True)])
        await eventually_async(lambda: objects.condition("FeedbackFlowing"))
    before = objects.get()
    async with writing(objects, every_s=0.05) as (sink, wrote):
        assert (await sink.current()).revision == 2
        assert [plan.revision for plan in await sink.history()] == [1]
        sink.report(delivery=delivery(1), conditions=[flowing(True)])
        await asyncio.sleep(0.2)
        assert not wrote
    assert objects.get()["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_the_transition_time_moves_only_with_the_status(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        old = flowing(True).model_copy(update={"last_transition_time": "2026-01-01T00:00:00Z"})
        sink._conditions = (old,)
        sink.report(conditions=[flowing(True, "first")])
        await eventually_async(lambda: objects.condition("FeedbackFlowing"))
        sink.report(conditions=[flowing(True, "second")])
        await eventually_async(lambda: objects.condition("FeedbackFlowing").get("message") == "second")
        assert objects.condition("FeedbackFlowing")["lastTransitionTime"] == "2026-01-01T00:00:00Z"
        sink.report(conditions=[flowing(None)])
        await eventually_async(lambda: objects.condition("FeedbackFlowing")["status"] == "Unknown")
        assert objects.condition("FeedbackFlowing")["lastTransitionTime"] > "2026-01-01T00:00:00Z"


async def test_a_revision_that_cannot_be_counted_on_from_is_refused_with_the_next_step(objects):
    with pytest.raises(KubeError, match=r"plan\.revision.*at most 1000000000000.*one above the plan in force"):
        objects.put_raw_plan({**a_plan(1).model_dump(mode="json", by_alias=True), "revision": 2**63 - 1})


async def test_a_plan_of_the_highest_revision_put_there_by_hand_does_not_stop_the_next_one(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        sink.see(objects.put_plan(a_plan(MAX_REVISION, ALL)))
        await sink.publish(a_plan(2))
        await eventually_async(lambda: objects.plan()["revision"] == 2)
        sink.report(delivery=delivery(1))
        await eventually_async(lambda: objects.status().get("delivery"))
    assert objects.plan()["revision"] == 2


async def test_a_plan_put_there_by_hand_is_in_force_and_the_one_before_it_is_history(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        sink.see(objects.put_plan(a_plan(7, ALL)))
        assert (await sink.current()).revision == 7
        await eventually_async(lambda: [p["revision"] for p in objects.status().get("history", [])] == [1])
        with pytest.raises(PlanRefused, match="revision 7 is in force"):
            await sink.publish(a_plan(2))


async def test_ramps_that_somebody_put_there_by_hand_go_when_the_next_plan_has_none_of_them(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        sink.see(objects.put_plan(a_plan(2, ALL)))
        await sink.publish(a_plan(3, {1: 0.9}))
    assert [(ramp["ramp"], ramp["threshold"]) for ramp in objects.plan()["ramps"]] == [(1, 0.9)]


async def test_a_newer_plan_that_the_controller_has_not_seen_yet_is_never_overwritten(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        objects.put_plan(a_plan(9, ALL))
        with pytest.raises(PlanRefused, match="revision 9 is in force"):
            await sink.publish(a_plan(2))
        assert (await sink.current()).revision == 9
        objects.put_plan(a_plan(10, ALL))
        with pytest.raises(PlanRefused, match="revision 10 is in force"):
            await sink.publish(a_plan(11))  # decided without it, whatever its number
    assert objects.plan()["revision"] == 10


async def test_a_write_that_others_were_quicker_than_is_done_again(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        objects.change({"serving": {"replicas": 3}})
        assert await sink.publish(a_plan(2))
    assert (objects.plan()["revision"], objects.get()["spec"]["serving"]["replicas"]) == (2, 3)


async def test_a_part_that_somebody_changed_is_put_right(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(5))
        sink.see(objects.put_plan(a_plan(5, {1: 0.9})))
        await eventually_async(lambda: objects.plan()["ramps"][0]["threshold"] == 0.5)


async def test_two_writers_at_once_lose_no_update(objects):
    path = f"{model_path(objects.namespace, 'm')}/status"

    def operate() -> None:
        for replicas in range(50):
            body = {"status": {"replicas": replicas}}
            objects.client.call("PATCH", path, query={"fieldManager": "o"}, body=body, content_type=MERGE)

    async with writing(objects, every_s=0.0) as (sink, _):
        operating = asyncio.create_task(asyncio.to_thread(operate))
        for revision in range(1, 51):
            try:
                await sink.publish(a_plan(revision))
            except KubeError as error:
                assert error.status == 409
        await operating
        await sink.publish(a_plan(99))
    assert (objects.plan()["revision"], objects.status()["replicas"]) == (99, 49)


async def test_the_status_of_a_later_object_of_the_same_name_is_not_touched(objects):
    async with writing(objects, every_s=0.05) as (sink, _):
        await sink.publish(a_plan(1))
        objects.delete()
        objects.create()
        with pytest.raises(KubeError):
            await sink.publish(a_plan(2))
    assert objects.plan() == {}
