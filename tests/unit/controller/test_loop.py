from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from apparate.contract.resource import PlanStatus
from apparate.plan import MAX_REVISION, Plan
from apparate_controller.loop import ModelLoop, Ports
from apparate_controller.sources.heartbeats import WorkerState
from support.control import CATALOG, MODEL, payload
from support.eventually import eventually_async
from support.fakes import FakeFeedbackSource, FakeHeartbeats, FakeObserver, FakePlanSink, FakeSession


class Desk:
    """A loop with every port in memory."""

    def __init__(self, source=None, sink=None, workers=()) -> None:
        self.source = source or FakeFeedbackSource()
        self.sink = sink or FakePlanSink()
        self.observer = FakeObserver()
        self.sessions: list[FakeSession] = []
        self.loop = ModelLoop(
            MODEL, CATALOG, self.new_session, Ports(self.source, self.sink, FakeHeartbeats(*workers), self.observer)
        )

    def new_session(self, plan: Plan) -> FakeSession:
        self.sessions.append(FakeSession(plan, every=8, catalog=CATALOG.digest))
        return self.sessions[-1]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run())
        try:
            yield
        finally:
            self.loop.stop()
            await asyncio.wait_for(task, 5)

    async def worked_off(self, batches: int) -> None:
        await eventually_async(lambda: self.loop.progress.totals.batches == batches)
        await eventually_async(lambda: len(self.source.acked) == len(self.source.entries))

    @property
    def revisions(self) -> list[int]:
        return [plan.revision for plan in self.sink.plans]


async def test_a_new_model_gets_its_first_plan():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])


async def test_a_decision_is_published_and_its_entries_acked():
    desk = Desk()
    for seq in range(4):
        desk.source.add(payload(seq))
    async with desk.running():
        await desk.worked_off(4)
    assert (desk.revisions, desk.sink.plans[-1].reason) == ([1, 2, 3], "ThresholdsTuned")


class WantsASearch:
    """What a session hands out, once."""

    def run(self) -> tuple[int, ...]:
        return (0, 2)


async def test_a_search_that_comes_with_one_of_several_decisions_is_made():
    desk = Desk()
    wanted, proposed = [WantsASearch()], []
    new_session = desk.new_session

    def searching(plan: Plan) -> FakeSession:
        session = new_session(plan)
        session.take_search = lambda: wanted.pop() if wanted else None
        session.propose = proposed.append
        return session

    desk.loop._new_session = searching
    for seq in range(4):
        desk.source.add(payload(seq))
    async with desk.running():
        await desk.worked_off(4)
        await eventually_async(lambda: proposed == [(0, 2)])
    assert desk.revisions == [1, 2, 3]


async def test_a_plan_that_could_not_be_published_is_published_later_and_only_once():
    desk = Desk()
    publish, failures = desk.sink.publish, [RedisConnectionError("gone")]

    async def failing(plan):
        if plan.revision == 2 and failures:
            raise failures.pop()
        return await publish(plan)

    desk.sink.publish = failing
    for seq in range(3):
        desk.source.add(payload(seq))
    async with desk.running():
        await desk.worked_off(3)
    assert desk.revisions == [1, 2]


async def test_a_lost_ack_counts_nothing_twice():
    desk = Desk()
    desk.source.fail["commit"] = []
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        desk.source.fail["commit"] = [RedisConnectionError("gone")]
        desk.source.add(payload(0))
        desk.source.add(payload(1))
        await desk.worked_off(2)
    assert (desk.loop.progress.totals.duplicates, len(desk.sessions[0].fed)) == (0, 2)


async def test_a_restarted_controller_goes_on_from_plan_position_and_window():
    first = Desk()
    for seq in range(3):
        first.source.add(payload(seq))
    async with first.running():
        await first.worked_off(3)
    second = Desk(first.source, first.sink)
    second.source.add(payload(3))
    async with second.running():
        await second.worked_off(4)
    session = second.sessions[0]
    assert [seq for _, _, seq in session.refilled] == [0, 1, 2]
    assert [seq for _, _, seq in session.fed] == [3]
    assert first.revisions == [1, 2]


async def test_a_controller_that_lost_its_plans_numbers_above_what_workers_run():
    desk = Desk(workers=(WorkerState("w", revision=17),))
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [18])


async def test_a_plan_older_than_what_workers_run_is_published_anew_above_it():
    sink = FakePlanSink()
    sink.plans.append(PlanStatus.of(Plan.of(5, [1], [0.5], CATALOG.digest)))
    desk = Desk(sink=sink, workers=(WorkerState("w", revision=9),))
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [5, 10])
    assert sink.plans[-1].to_plan().ramps == sink.plans[0].to_plan().ramps


async def test_plans_that_vanish_are_published_again():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        desk.sink.plans.clear()
        await eventually_async(lambda: desk.revisions == [1])


async def test_plans_that_vanish_while_workers_run_them_come_back_under_a_higher_revision():
    desk = Desk(workers=(WorkerState("w", revision=1),))
    async with desk.running():
        await eventually_async(lambda: len(desk.revisions) == 1)
        ran = desk.revisions[0]
        desk.loop._ports.heartbeats.live = (WorkerState("w", revision=ran),)
        desk.sink.plans.clear()
        await eventually_async(lambda: desk.revisions == [ran + 1])


async def test_a_newer_plan_by_somebody_else_is_taken_up():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        desk.sink.plans.append(PlanStatus.of(Plan.of(7, [0], [0.1], CATALOG.digest)))
        await eventually_async(lambda: desk.loop.plan is not None and desk.loop.plan.revision == 7)
    assert desk.revisions == [1, 7]


async def test_a_model_that_cannot_make_progress_says_why_and_keeps_turning():
    desk = Desk()
    desk.source.fail["open"] = [ResponseError("NOAUTH Authentication required.")] * 10_000
    async with desk.running():
        await eventually_async(lambda: "NOAUTH" in desk.loop.problem)
        turned = desk.loop.turned_at
        await eventually_async(lambda: desk.loop.turned_at > turned)


async def test_damaged_progress_does_not_stop_the_model():
    desk = Desk()
    desk.source.stored = {"records": "many"}
    desk.source.add(payload(0))
    async with desk.running():
        await desk.worked_off(1)
    assert desk.observer.errors


async def test_stopping_finishes_and_stores_the_entries_in_hand():
    desk = Desk()
    for seq in range(50):
        desk.source.add(payload(seq))
    async with desk.running():
        await eventually_async(lambda: desk.sessions and desk.sessions[0].fed)
    assert (len(desk.source.acked), desk.source.stored["batches"]) == (50, "50")


async def test_a_plan_of_the_highest_revision_that_somebody_put_there_is_followed_and_then_replaced():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        by_hand = Plan.of(MAX_REVISION // 2, [0, 2], [0.1, 0.2], CATALOG.digest)
        desk.sink.plans.append(PlanStatus.of(by_hand))
        await eventually_async(lambda: desk.loop.plan and desk.loop.plan.active == (0, 2), within=5)
        desk.sink.plans.append(PlanStatus.of(Plan.of(MAX_REVISION, [1, 2], [0.1, 0.2], CATALOG.digest)))
        await eventually_async(lambda: desk.loop.plan and desk.loop.plan.active == (1, 2), within=5)
        for seq in range(2):
            desk.source.add(payload(seq, revision=MAX_REVISION))
        await desk.worked_off(2)
    assert desk.revisions == [1, MAX_REVISION // 2, MAX_REVISION, 1]


async def test_a_controller_that_starts_with_a_plan_of_the_highest_revision_goes_on_above_what_workers_run():
    desk = Desk(workers=[WorkerState("a", revision=57)])
    desk.sink.plans.append(PlanStatus.of(Plan.of(MAX_REVISION, [0, 2], [0.1, 0.2], CATALOG.digest)))
    async with desk.running():
        await eventually_async(lambda: desk.revisions[-1] == 58)
    assert [ramp.ramp for ramp in desk.sink.plans[-1].ramps] == [0, 2]
