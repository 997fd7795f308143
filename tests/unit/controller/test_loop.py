from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from apparate.contract.pause import Pause
from apparate.contract.resource import PlanStatus
from apparate.plan import MAX_REVISION, Plan
from apparate_controller.errors import PlanUnknown
from apparate_controller.loop import ModelLoop
from apparate_controller.ports import Ports
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


def by_hand(revision: int, ramps: tuple[int, ...] = (0,), catalog: str = CATALOG.digest) -> PlanStatus:
    return PlanStatus.of(Plan.of(revision, ramps, [0.1] * len(ramps), catalog))


def reasons(desk: Desk) -> list[str]:
    return [one.reason for one in desk.loop.journal.newest_first()]


async def test_feedback_of_a_plan_that_somebody_put_there_does_not_take_it_away_again():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        desk.sink.plans.append(by_hand(2))
        desk.source.add(payload(0, revision=2))  # a worker is faster than the next look around
        await desk.worked_off(1)
    assert (desk.revisions, desk.loop.plan.revision, desk.loop.plan.active) == ([1, 2], 2, (0,))


async def test_a_plan_that_somebody_put_there_is_taken_up_without_a_new_session_and_noted():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        desk.sink.plans.append(by_hand(7))
        await eventually_async(lambda: desk.loop.plan.revision == 7)  # and never None in between
    assert (len(desk.sessions), desk.observer.errors) == (1, [])
    assert reasons(desk) == ["PutByHand", "Started"]
    assert [one.reason for one in desk.observer.decisions] == ["Started", "PutByHand"]


async def test_a_decision_that_somebody_was_quicker_than_is_not_in_the_history_and_theirs_is():
    desk = Desk()
    publish = desk.sink.publish

    async def outrun(plan: PlanStatus) -> bool:
        if plan.revision == 2 and len(desk.sink.plans) == 1:
            desk.sink.plans.append(by_hand(2))
        return await publish(plan)

    desk.sink.publish = outrun
    for seq in range(2):
        desk.source.add(payload(seq))
    async with desk.running():
        await eventually_async(lambda: len(desk.sessions) == 2)
        await desk.worked_off(2)
    assert [(one.reason, one.revision) for one in desk.loop.journal.newest_first()][-2:] == [
        ("PutByHand", 2),
        ("Started", 1),
    ]


async def test_while_a_new_session_is_made_the_old_one_is_shown():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        desk.source.fail["load"] = [RedisConnectionError("gone")] * 3
        desk.sink.plans.append(by_hand(7, catalog="another"))
        await eventually_async(lambda: not desk.source.fail["load"])
        assert desk.loop.plan.revision > 0
        await eventually_async(lambda: desk.revisions == [1, 7, 8])
    assert reasons(desk) == ["Started", "PutByHand", "Started"]


async def test_a_rollback_is_in_force_when_it_is_answered_and_is_a_decision_with_who_asked():
    desk = Desk()
    for seq in range(2):
        desk.source.add(payload(seq))
    async with desk.running():
        await desk.worked_off(2)
        new = await desk.loop.roll_back(1, "alice")
        assert (new.revision, desk.loop.plan.revision, desk.loop.plan.ramps) == (
            3,
            3,
            desk.sink.plans[0].to_plan().ramps,
        )
        noted = desk.loop.journal.newest_first()[0]
        assert (noted.reason, noted.revision, noted.by) == ("RolledBackByHand", 3, "alice")
        assert "revision 1 again, as alice asked" in noted.message
        desk.source.add(payload(2, revision=3))
        await desk.worked_off(3)
    assert (desk.revisions, desk.observer.errors, len(desk.sessions)) == ([1, 2, 3], [], 1)


async def test_a_rollback_that_was_not_published_changes_nothing():
    desk = Desk()
    for seq in range(2):
        desk.source.add(payload(seq))
    async with desk.running():
        await desk.worked_off(2)
        with pytest.raises(PlanUnknown, match="revision 77 is not in the history"):
            await desk.loop.roll_back(77)
        assert (desk.loop.plan.revision, reasons(desk)) == (2, ["ThresholdsTuned", "Started"])


async def test_a_paused_model_takes_no_decision_and_tells_what_its_window_says():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        pause = await desk.loop.hold(True, "alice")
        assert (pause.paused, pause.by, bool(pause.since)) == (True, "alice", True)
        for seq in range(4):
            desk.source.add(payload(seq))
        await desk.worked_off(4)
        await eventually_async(lambda: desk.loop.observed.samples == 16)
        assert desk.revisions == [1]
        await desk.loop.hold(False, "bob")
        desk.source.add(payload(4))
        await eventually_async(lambda: desk.revisions == [1, 2])
    assert reasons(desk) == ["ThresholdsTuned", "ResumedByHand", "PausedByHand", "Started"]
    assert [one.by for one in desk.loop.journal.newest_first()] == ["", "bob", "alice", ""]


async def test_pausing_what_is_paused_is_no_decision():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        for _ in range(3):
            await desk.loop.hold(True, "alice")
    assert reasons(desk) == ["PausedByHand", "Started"]


async def test_a_document_that_pauses_a_running_model_is_followed_before_the_next_decision():
    desk = Desk()
    async with desk.running():
        await eventually_async(lambda: desk.revisions == [1])
        desk.loop.follow(Pause(True, "2026-01-01T00:00:00Z", "kubectl-edit", document=True))
        assert desk.loop.pause.by == "kubectl-edit"
        for seq in range(4):
            desk.source.add(payload(seq))
        await desk.worked_off(4)
        assert desk.revisions == [1]
        desk.loop.follow(Pause())
        await eventually_async(lambda: reasons(desk)[0] == "ResumedByHand")
    assert len(desk.sessions) == 1


async def test_decisions_and_a_pause_by_hand_outlive_the_process():
    first = Desk()
    for seq in range(2):
        first.source.add(payload(seq))
    async with first.running():
        await first.worked_off(2)
        await first.loop.hold(True, "alice")
        stored = dict(first.source.stored)  # as a process that is killed now leaves it
    first.source.stored = stored
    second = Desk(first.source, first.sink)
    async with second.running():
        await eventually_async(lambda: second.loop.plan is not None)
        for seq in range(2, 6):
            second.source.add(payload(seq))
        await second.worked_off(6)
        assert (second.loop.pause.paused, second.loop.pause.by) == (True, "alice")
    assert (reasons(second), second.revisions) == (["PausedByHand", "ThresholdsTuned", "Started"], [1, 2])
    assert second.loop.journal.newest_first() == first.loop.journal.newest_first()


async def test_a_document_that_changed_while_nobody_adapted_takes_the_place_of_a_pause_by_hand():
    first = Desk()
    first.loop.follow(Pause(True, document=True))
    async with first.running():
        await eventually_async(lambda: first.revisions == [1])
        await first.loop.hold(True, "alice")
    second = Desk(first.source, first.sink)
    second.loop.follow(Pause())
    async with second.running():
        await eventually_async(lambda: second.loop.plan is not None)
        assert not second.loop.pause.paused
    assert reasons(second)[0] == "ResumedByHand"


async def test_a_history_that_was_kept_by_no_version_or_is_lost_begins_with_the_plans_there_are():
    sink = FakePlanSink()
    for revision, reason in ((3, "Started"), (4, "ThresholdsTuned"), (5, "RolledBackByHand")):
        told = {"reason": reason, "decided_at": f"2026-01-0{revision}T00:00:00Z"}
        sink.plans.append(by_hand(revision).model_copy(update=told))
    desk = Desk(sink=sink)
    async with desk.running():
        await eventually_async(lambda: desk.loop.plan is not None)
    assert [(one.revision, one.reason, one.at[9]) for one in desk.loop.journal.newest_first()] == [
        (5, "RolledBackByHand", "5"),
        (4, "ThresholdsTuned", "4"),
        (3, "Started", "3"),
    ]


async def test_a_decision_of_which_only_the_plan_was_stored_is_in_the_history_after_all():
    first = Desk()
    async with first.running():
        await eventually_async(lambda: first.revisions == [1])
    last = by_hand(2).model_copy(update={"reason": "LossAboveBudget", "message": "alarm", "decided_at": "t"})
    first.sink.plans.append(last)  # and then it was killed
    second = Desk(first.source, first.sink)
    async with second.running():
        await eventually_async(lambda: second.loop.plan is not None)
    assert reasons(second) == ["LossAboveBudget", "Started"]
    assert second.observer.decisions == []  # counted by whoever took it
