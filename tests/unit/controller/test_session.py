"""The session: first plans, revisions above all that workers have run, searches handed out, what people see."""

import json
from dataclasses import replace

import numpy as np
import pytest

from apparate.adaptation.policy import Reason
from apparate.catalog import RampCatalog
from apparate.contract.resource import Spec
from apparate.feedback import FINAL, FeedbackBatch
from apparate.plan import Plan
from apparate_controller.session import ModelSession

CATALOG = RampCatalog((1,), [[1.0, 4.0, 7.0]], [[0.1, 0.1, 0.1]], [10.0])


def a_session(plan=None, catalog=CATALOG, **spec):
    document = {"model": {"source": "x", "entrypoint": "a:b"}, "bootstrap": {"data": "x"}} | spec
    return ModelSession(catalog, Spec.model_validate(document), plan or Plan(0))


def feedback(n=64, *, revision=1, ramps=(0, 1, 2), err=0.1, wrong=0, exits=FINAL, catalog=CATALOG.digest, **changes):
    labels = np.zeros((n, len(ramps)), np.int32)
    labels[:wrong] = 1
    fields = {
        "model": "default/m/1",
        "worker": "w",
        "epoch": 1,
        "seq": 0,
        "revision": revision,
        "padded_size": n,
        "ramps": ramps,
        "errors": np.full((n, len(ramps)), err, np.float32),
        "labels": labels,
        "final_labels": np.zeros(n, np.int32),
        "exits": np.full(n, exits, np.int32),
        "catalog": catalog,
    }
    return FeedbackBatch(**(fields | changes))


def test_the_first_plan_has_revision_1_and_closed_ramps():
    decision = a_session().start()
    assert decision.reason is Reason.STARTED
    assert (decision.plan.revision, decision.plan.exits_open) == (1, False)


def test_a_plan_of_this_catalog_goes_on():
    plan = Plan.of(9, [1], [0.2], CATALOG.digest)
    assert a_session(plan).start() is None


def test_a_plan_of_another_catalog_is_replaced_by_a_higher_revision():
    decision = a_session(Plan.of(9, [1], [0.2], "another")).start()
    assert (decision.plan.revision, decision.plan.catalog) == (10, CATALOG.digest)


def test_a_plan_with_ramps_that_the_catalog_lacks_is_replaced():
    decision = a_session(Plan.of(9, [1, 99], [0.2, 0.2], CATALOG.digest)).start()
    assert (decision.plan.revision, decision.plan.active) == (10, (0, 1))


def test_when_no_ramp_fits_the_overhead_the_reason_has_the_numbers():
    decision = a_session(budget={"rampOverhead": 0.005}).start()
    assert decision.plan.ramps == ()
    assert "no ramp fits the ramp overhead of 0.50%, the cheapest costs 1.00% of a pass" in decision.message
    assert a_session(decision.plan, budget={"rampOverhead": 0.005}).start() is None


def test_after_any_traffic_a_plan_without_ramps_still_says_why_it_has_none():
    session = a_session(budget={"rampOverhead": 0.005})
    first = session.start()
    later = [found for seq in range(20) if (found := session.feed(feedback(ramps=(), seq=seq))) is not None]
    assert later
    assert {(one.reason, one.message, one.plan) for one in later} == {(Reason.UNCHANGED, first.message, None)}


def test_feedback_of_another_catalog_is_dropped_and_counted():
    session = a_session()
    session.feed(feedback(catalog="another"))
    assert (session.foreign, len(session.window)) == (64, 0)


def test_enough_good_feedback_opens_exits():
    session = a_session()
    session.start()
    decisions = [session.feed(feedback()) for _ in range(8)]
    last = decisions[-1]
    assert decisions[:-1] == [None] * 7
    assert last.reason is Reason.THRESHOLDS_TUNED
    assert last.plan.exits_open
    assert session.plan == last.plan


def test_a_decision_waits_while_more_feedback_is_at_hand():
    session = a_session()
    session.start()
    assert [session.feed(feedback(), more=True) for _ in range(20)] == [None] * 20
    assert session.feed(feedback()) is not None


def test_an_alarm_is_answered_even_when_more_is_at_hand():
    session = a_session(Plan.of(3, [1], [0.5], CATALOG.digest))
    for _ in range(10):
        session.feed(feedback(revision=3), more=True)
    decision = session.feed(feedback(revision=3, wrong=20, exits=1, err=0.4), more=True)
    assert decision.reason is Reason.LOSS_ABOVE_BUDGET
    assert decision.plan.revision == 4


def test_a_workers_guard_is_answered():
    session = a_session(Plan.of(3, [1], [0.5], CATALOG.digest))
    assert session.feed(feedback(revision=3, guarded=True)).reason is Reason.LOSS_ABOVE_BUDGET


def test_a_guard_under_an_older_plan_is_not_answered_again():
    session = a_session(Plan.of(3, [1], [0.5], CATALOG.digest))
    assert session.feed(feedback(revision=2, guarded=True)) is None


def test_revisions_go_above_every_one_that_a_worker_has_run():
    session = a_session()
    session.start()
    session.refill(feedback(revision=41))
    for _ in range(10):
        session.feed(feedback(revision=41))
    assert session.plan.revision == 42


def test_refilling_decides_nothing():
    session = a_session()
    session.start()
    for _ in range(50):
        session.refill(feedback())
    assert session.plan.revision == 1


def test_a_search_is_handed_out_once_and_its_proposal_is_considered():
    session = a_session(Plan.of(1, [2], [0.0], CATALOG.digest), budget={"rampOverhead": 0.01})
    searches = []
    for _ in range(40):
        session.feed(feedback(32, err=0.05))
        if (search := session.take_search()) is not None:
            searches.append(search)
            assert session.take_search() is None
    assert searches
    session.propose(searches[0].run())
    assert session.feed(feedback()).plan.active == (0,)  # everything may leave at the first ramp


@pytest.mark.parametrize("adaptation", [{"policy": "never"}, {"paused": True}])
def test_when_told_not_to_adapt_it_only_listens(adaptation):
    session = a_session(adaptation=adaptation)
    session.start()
    assert [session.feed(feedback()) for _ in range(20)] == [None] * 20
    assert len(session.window) == 64 * 20


def test_a_paused_session_tells_what_its_window_says_now():
    session = a_session(Plan.of(3, [1], [0.5], CATALOG.digest), adaptation={"paused": True})
    assert session.describe()["observed"]["samples"] == 0
    session.feed(feedback(64, revision=3, exits=1))
    assert (session.observe().samples, session.observed.exit_rate, session.observed.loss) == (64, 1.0, 0.0)
    session.feed(feedback(64, revision=3, exits=1, wrong=64))
    told = session.describe()
    assert (told["observed"]["samples"], told["observed"]["loss"], told["decisions"]) == (128, 0.5, [])


def test_a_session_that_goes_on_decides_on_what_it_has_seen_meanwhile():
    session = a_session()
    session.start()
    session.paused = True
    assert [session.feed(feedback()) for _ in range(20)] == [None] * 20
    session.paused = False
    assert session.feed(feedback()).reason is Reason.THRESHOLDS_TUNED


def test_what_was_seen_stays_until_a_record_knows_the_ramps_of_a_new_plan():
    session = a_session(Plan.of(3, [1], [0.5], CATALOG.digest))
    session.feed(feedback(64, revision=3, ramps=(1,), exits=1))
    assert session.observe().samples == 64
    assert session.take_up(Plan.of(4, [2], [0.5], CATALOG.digest))
    assert session.observe().samples == 64
    session.feed(feedback(32, revision=4, ramps=(2,), exits=FINAL))
    assert session.observe().samples == 96


@pytest.mark.parametrize(
    "plan",
    [
        Plan.of(4, [1], [0.5], "another"),
        Plan.of(4, [9], [0.5], CATALOG.digest),
        Plan.of(4, [], [], CATALOG.digest),
        Plan.of(0, [1], [0.5], CATALOG.digest),
    ],
)
def test_a_plan_that_takes_a_new_session_is_not_taken_up(plan):
    session = a_session(Plan.of(3, [1], [0.5], CATALOG.digest))
    assert not session.take_up(plan)
    assert session.plan.revision == 3


def test_an_alarm_of_the_plan_before_says_nothing_of_one_that_was_taken_up():
    session = a_session(Plan.of(3, [1], [0.5], CATALOG.digest))
    session.paused = True
    for _ in range(4):
        session.feed(feedback(revision=3, wrong=20, exits=1, err=0.4))
    session.paused = False
    session.take_up(Plan.of(4, [1], [0.1], CATALOG.digest))
    assert session.feed(feedback(revision=4), more=True) is None


def test_the_description_is_plain_data():
    session = a_session()
    session.start()
    for _ in range(10):
        session.feed(feedback())
    told = json.loads(json.dumps(session.describe()))
    assert told["window"]["records"] == 640
    assert told["ramps"][0]["exitRate"] == pytest.approx(1.0)
    assert told["ramps"][0]["agreement"] == 1.0
    assert told["decisions"][-1]["reason"] == "Started"


def test_numbers_of_ramps_beyond_the_catalog_are_refused():
    with pytest.raises(ValueError, match="not in a catalog of 3 ramps"):
        a_session().feed(replace(feedback(), ramps=(0, 1, 7)))
