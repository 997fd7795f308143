"""Releasing ramp by ramp gives the answers of the exit rule over the whole matrix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from apparate.adaptation.exits import exit_ramps
from apparate.feedback import FINAL
from apparate_worker.release import NO_LIMITS, Limits, Release, scores

ERRORS = st.one_of(
    st.floats(0, 1, width=32), st.sampled_from([0.0, 0.5, 1.0, float("nan"), float(np.nextafter(np.float32(0.5), 0))])
)
THRESHOLDS = st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.5, 1.0, 0.1, 1e-12]))


@given(st.data(), st.integers(1, 8), st.integers(0, 6))
def test_it_says_the_same_as_exit_ramps_on_the_whole_matrix(data, requests, ramps):
    errors = data.draw(hnp.arrays(np.float32, (requests, ramps), elements=ERRORS.map(np.float32)))
    thresholds = np.array(data.draw(st.lists(THRESHOLDS, min_size=ramps, max_size=ramps)), np.float32)
    limits = thresholds.tolist()
    release = Release(requests)
    released = [release.at(r, errors[:, r], limits[r]) for r in range(ramps)] + [release.rest()]
    left_at = exit_ramps(errors, thresholds)
    assert [FINAL if r == ramps else r for r in left_at] == release.exits
    for r, rows in enumerate(released):
        assert rows == np.flatnonzero(left_at == r).tolist()
    assert sorted(release.order) == list(range(requests))


def test_a_closed_ramp_lets_nobody_go():
    assert Release(2).at(0, np.zeros(2, np.float32), 0.0) == []


@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 12)), elements=st.floats(-50, 50, width=32)))
def test_scores_are_one_minus_the_largest_softmax_and_the_first_best_label(logits):
    errors, labels = scores(logits)
    wide = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    np.testing.assert_allclose(errors, 1 - (wide / wide.sum(1, keepdims=True)).max(1), atol=1e-6)
    assert labels.tolist() == logits.argmax(1).tolist()
    assert errors.dtype == np.float32


@pytest.mark.parametrize("classes", [2, 30])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", [slice(None), slice(0, 1), slice(-1, None)])
def test_scores_that_are_no_numbers_are_never_sure(bad, where, classes):
    logits = np.zeros((1, classes), np.float32)
    logits[:, where] = bad
    with np.errstate(all="ignore"):
        errors, _ = scores(logits)
    assert Release(1).at(0, errors, 1.0) == []


def test_the_rest_of_some_rows_leaves_the_others_waiting():
    release = Release(4)
    release.at(0, np.array([0.1, 0.9, 0.9, 0.9], np.float32), 0.5)
    assert release.rest([0, 1]) == [1]
    assert [release.waits(row) for row in range(4)] == [False, False, True, True]
    assert release.rest() == [2, 3]


LIMITS = st.builds(Limits, st.integers(-1, 6), st.sampled_from([0.0, 0.3, 0.5, 1.0]))


@given(st.data(), st.integers(1, 6), st.integers(1, 5))
def test_a_request_with_limits_leaves_at_the_first_ramp_that_both_the_plan_and_it_allow(data, requests, ramps):
    errors = data.draw(hnp.arrays(np.float32, (requests, ramps), elements=ERRORS.map(np.float32)))
    thresholds = np.array(data.draw(st.lists(THRESHOLDS, min_size=ramps, max_size=ramps)), np.float32)
    limits = data.draw(st.dictionaries(st.integers(0, requests - 1), LIMITS))
    release = Release(requests, limits)
    for ramp in range(ramps):
        release.at(ramp, errors[:, ramp], float(thresholds[ramp]))
    for row in range(requests):
        last, most = limits.get(row, NO_LIMITS)
        plan = [r for r in range(ramps) if errors[row, r] < thresholds[r]]
        may = [r for r in plan if r <= last and errors[row, r] <= most]
        assert release.exits[row] == (may[0] if may else FINAL)


def test_a_request_that_was_let_do_less_and_ran_to_the_end_earns_the_others_no_credit():
    release = Release(4, {0: Limits(-1, 1.0), 1: Limits(2, 1.0)})
    release.at(0, np.array([0.1, 0.1, 0.9, 0.1], np.float32), 0.5)
    release.rest()
    assert (release.order, release.counting) == ([1, 3, 0, 2], [1, 3, 2])


def test_where_no_request_has_limits_every_answer_counts():
    release = Release(2)
    release.rest()
    assert release.counting == [0, 1]
