from __future__ import annotations

from collections import deque
from dataclasses import replace

import pytest

from apparate.contract.wire import encode_feedback
from apparate.plan import Plan
from apparate_controller.intake import Intake
from apparate_controller.progress import Progress
from apparate_controller.sources.redis_stream import Entry
from support.control import CATALOG, MODEL, a_batch, payload
from support.fakes import FakeSession


def an_intake(every: int = 10_000) -> Intake:
    session = FakeSession(Plan(1, (), CATALOG.digest), every=every, catalog=CATALOG.digest)
    return Intake(MODEL, CATALOG, session, Progress())


def entries(*payloads: bytes | None) -> deque[Entry]:
    return deque(Entry(f"{i + 1}-0", one) for i, one in enumerate(payloads))


def test_entries_become_records_of_the_session():
    intake = an_intake()
    intake.take(entries(payload(0), payload(1)))
    assert (intake.session.window.added, intake.progress.totals.records, intake.progress.last_id) == (8, 8, "2-0")


def test_it_stops_at_a_decision_so_that_it_can_be_published_at_once():
    waiting = entries(payload(0), payload(1), payload(2))
    took = an_intake(every=8).take(waiting)
    assert (took.decision is not None, len(waiting)) == (True, 1)


def test_a_repeat_is_counted_and_not_fed():
    intake = an_intake()
    took = intake.take(entries(payload(0), payload(0)))
    assert (took.duplicates, intake.session.window.added) == (1, 4)


def test_an_entry_given_out_again_by_redis_is_not_counted_as_a_repeat():
    intake = an_intake()
    intake.take(entries(payload(0)))
    took = intake.take(entries(payload(0)))
    assert (took.duplicates, took.batches, intake.progress.totals.batches) == (0, 0, 1)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"\xff\xff", "undecodable"),
        (encode_feedback(replace(a_batch(), model="default/other/local")), "undecodable"),
        (encode_feedback(replace(a_batch(), catalog="another")), "catalog"),
        (encode_feedback(replace(a_batch(), ramps=(0, 1, 7), catalog="")), "undecodable"),
    ],
)
def test_an_unusable_entry_is_worked_off_and_counted_by_cause(data, cause):
    intake = an_intake()
    took = intake.take(entries(data, payload(1)))
    assert (took.refused, intake.progress.totals.refused, list(intake.uncommitted)) == ({cause: 1}, 1, ["1-0", "2-0"])


def test_a_trimmed_entry_is_worked_off_and_its_loss_counted_by_the_gap():
    intake = an_intake()
    took = intake.take(entries(payload(0), None, payload(2)))
    assert (took.lost, len(intake.uncommitted)) == (1, 3)


def test_a_batch_that_the_session_chokes_on_does_not_stop_the_others():
    intake = an_intake()
    feed = intake.session.feed

    def choking(batch, **more):
        if batch.seq == 0:
            raise ZeroDivisionError("division by zero")
        return feed(batch, **more)

    intake.session.feed = choking
    took = intake.take(entries(payload(0), payload(1)))
    assert (took.refused, intake.session.window.added) == ({"failed": 1}, 4)


def test_feedback_of_a_plan_above_the_sessions_waits_until_it_is_known_whose_plan_that_is():
    intake, waiting = an_intake(), entries(payload(0), payload(1, revision=40), payload(2))
    took = intake.take(waiting)
    assert (took.ahead, took.decision, len(waiting), intake.session.window.added) == (40, None, 2, 4)
    assert intake.renumber(40).plan.revision == 41
    assert (intake.take(waiting).batches, len(waiting)) == (2, 0)


def test_recalled_entries_fill_the_window_in_order_and_without_repeats():
    intake, found = an_intake(), []
    intake.recall([Entry("3-0", payload(1)), Entry("2-0", payload(1)), Entry("1-0", payload(0))], found)
    intake.refill(found)
    assert [seq for _, _, seq in intake.session.refilled] == [0, 1]


def test_recalling_ends_when_the_window_is_full():
    intake = an_intake()
    found = []
    assert not intake.recall([Entry("9-0", payload(9))], found)
    assert intake.recall([Entry(f"{i}-0", payload(i, n=250)) for i in range(8, 4, -1)], found)


@pytest.mark.parametrize("change", [{"catalog": "another"}, {"ramps": (0, 1, 7), "catalog": ""}])
def test_records_of_a_refused_batch_are_not_counted_and_its_revision_is_remembered(change):
    intake = an_intake()
    took = intake.take(entries(encode_feedback(replace(a_batch(), revision=1, **change))))
    assert (took.records, took.revision, intake.progress.totals.records, intake.progress.totals.revision) == (
        0,
        0,
        0,
        1,
    )
