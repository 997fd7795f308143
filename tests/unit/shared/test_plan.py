import numpy as np
import pytest

from apparate.plan import MAX_REVISION, InvalidPlan, Plan, RampSetting, newer, newest, revision_after


def test_ramps_are_kept_in_execution_order():
    assert Plan.of(1, [5, 2], [0.1, 0.2]).active == (2, 5)


def test_a_plan_without_ramps_is_the_plain_model():
    assert not Plan(0).exits_open


def test_a_plan_with_every_ramp_closed_has_no_exits():
    assert not Plan.of(3, [1, 2], [0.0, 0.0]).exits_open


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_threshold_outside_its_range_is_refused_by_name(threshold):
    with pytest.raises(InvalidPlan, match=r"threshold of ramp 4 is .*, allowed 0..1"):
        Plan.of(1, [4], [threshold])


def test_a_repeated_ramp_is_refused():
    with pytest.raises(InvalidPlan, match="ramp 3 is listed twice"):
        Plan.of(1, [3, 3], [0.1, 0.2])


@pytest.mark.parametrize(
    ("revision", "ramp", "words"),
    [
        (-1, 0, "allowed 0..1000000000000"),
        (MAX_REVISION + 1, 0, "allowed 0..1000000000000"),
        (1, -2, "not be negative"),
    ],
)
def test_numbers_out_of_range_are_refused(revision, ramp, words):
    with pytest.raises(InvalidPlan, match=words):
        Plan.of(revision, [ramp], [0.1])


@pytest.mark.parametrize(
    ("revision", "than", "takes_its_place"),
    [
        (1, 0, True),
        (0, 0, False),
        (MAX_REVISION, 0, True),
        (0, 5, False),
        (6, 5, True),
        (5, 5, False),
        (4, 5, False),
        (5 + MAX_REVISION // 2, 5, True),
        (6 + MAX_REVISION // 2, 5, False),
        (5, 5 + MAX_REVISION // 2, False),
        (1, MAX_REVISION, True),
        (5, MAX_REVISION, True),
        (MAX_REVISION, 5, False),
    ],
)
def test_a_higher_revision_is_newer_and_after_the_highest_numbers_start_again(revision, than, takes_its_place):
    assert newer(revision, than) is takes_its_place


@pytest.mark.parametrize("one", [1, 7, MAX_REVISION // 2, MAX_REVISION])
@pytest.mark.parametrize("step", [1, MAX_REVISION // 2 - 1, MAX_REVISION // 2, MAX_REVISION // 2 + 1, MAX_REVISION - 1])
def test_of_two_revisions_exactly_one_is_newer(one, step):
    other = (one + step - 1) % MAX_REVISION + 1
    assert newer(one, other) is not newer(other, one)


@pytest.mark.parametrize("in_force", [0, 1, 57, MAX_REVISION // 2, MAX_REVISION - 1, MAX_REVISION])
@pytest.mark.parametrize("seen", [0, 57, MAX_REVISION - 1, MAX_REVISION])
def test_whatever_is_in_force_there_is_a_revision_that_replaces_it(in_force, seen):
    following = revision_after(in_force, seen)
    assert newer(following, newest(in_force, seen)) and 1 <= following <= MAX_REVISION


def test_changes_make_new_plans():
    plan = Plan.of(1, [1, 4], [0.1, 0.2])
    assert plan.activate(2).ramps == (RampSetting(1, 0.1), RampSetting(2, 0.0), RampSetting(4, 0.2))
    assert plan.deactivate(4).active == (1,)
    assert plan.with_threshold(4, 0.5).thresholds.tolist() == [np.float32(0.1), 0.5]
    assert plan.closed().thresholds.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("change", [lambda p: p.deactivate(9), lambda p: p.with_threshold(9, 0.1)])
def test_changing_a_ramp_that_is_not_active_is_refused(change):
    with pytest.raises(InvalidPlan, match="ramp 9 is not active in plan revision 1"):
        change(Plan.of(1, [1], [0.1]))


def test_same_settings_ignores_the_revision_only():
    plan = Plan.of(1, [1], [0.1], "a")
    assert plan.same_settings(Plan.of(7, [1], [0.1], "a"))
    assert not plan.same_settings(Plan.of(1, [1], [0.2], "a"))
    assert not plan.same_settings(Plan.of(1, [1], [0.1], "b"))
