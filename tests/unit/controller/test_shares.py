"""What the controller's share of a status is, and which plans are its history."""

from apparate.contract.rollback import HISTORY, history_with
from apparate.plan import MAX_REVISION
from apparate_controller.sinks.shares import in_order, share_in, with_bounded_revisions


def plan(revision):
    return {"revision": revision, "ramps": []}


def test_the_share_is_the_plan_and_what_it_does_and_the_controllers_conditions():
    status = {
        "plan": plan(1),
        "catalog": {"digest": "x"},
        "replicas": 2,
        "conditions": [{"type": "Ready"}, {"type": "AccuracyMet"}],
    }
    assert share_in({"status": status}) == {"plan": plan(1), "conditions": [{"type": "AccuracyMet"}]}


def test_a_fresh_object_has_no_share():
    assert share_in({}) == {}


def test_the_order_of_a_list_that_is_a_map_does_not_matter():
    one, other = {"ramps": [{"ramp": 2}, {"ramp": 1}]}, {"ramps": [{"ramp": 1}, {"ramp": 2}]}
    assert in_order(one) == in_order(other)


def test_the_replaced_plan_joins_the_history_newest_first():
    assert [p["revision"] for p in history_with([plan(1), plan(3)], plan(4), 5)] == [4, 3, 1]


def test_the_newest_plan_of_a_history_comes_first_also_where_numbers_start_again():
    shown = history_with([plan(MAX_REVISION), plan(1), plan(MAX_REVISION - 1)], plan(2), 3)
    assert [p["revision"] for p in shown] == [2, 1, MAX_REVISION, MAX_REVISION - 1]


def test_a_revision_that_cannot_be_counted_on_from_is_never_written_again():
    far = plan(2**63 - 1)
    status = with_bounded_revisions({"status": {"plan": far, "delivery": {"revision": 2**63 - 1}, "history": [far]}})
    share = share_in(status)
    revisions = {share["plan"]["revision"], share["delivery"]["revision"], share["history"][0]["revision"]}
    assert revisions == {MAX_REVISION} == {p["revision"] for p in history_with([far], None, 4)}


def test_the_plan_in_force_is_not_history():
    assert history_with([plan(4)], plan(5), 5) == [plan(4)]


def test_before_the_first_plan_there_is_no_history():
    assert history_with([], plan(0), 1) == [] == history_with([], None, 1)


def test_history_is_bounded():
    assert len(history_with([plan(i) for i in range(1, 50)], plan(50), 51)) == HISTORY
