import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate.adaptation.exits import exit_ramps, replay
from support.method import even_catalog, noisy_records


def test_a_threshold_of_zero_is_a_closed_ramp():
    assert exit_ramps(np.zeros((4, 1), np.float32), np.zeros(1, np.float32)).tolist() == [1, 1, 1, 1]


def test_without_ramps_everyone_runs_to_the_end():
    assert exit_ramps(np.zeros((2, 0), np.float32), np.zeros(0)).tolist() == [0, 0]


def test_the_first_ramp_that_lets_go_is_the_exit():
    assert exit_ramps(np.array([[0.5, 0.1, 0.0]], np.float32), np.array([0.2, 0.2, 0.2])).tolist() == [1]


def test_an_error_that_is_not_a_number_never_exits():
    assert exit_ramps(np.array([[np.nan]], np.float32), np.ones(1)).tolist() == [1]


def test_thresholds_compare_in_float32_whatever_they_come_in():
    error = np.array([[0.3]], np.float32)  # a little above 0.3 in float64
    assert exit_ramps(error, np.array([0.3])).tolist() == [1]
    assert exit_ramps(error.astype(np.float64), np.array([np.float64(np.float32(0.3)) + 1e-12])).tolist() == [1]


@given(st.integers(0, 2**32 - 1), st.integers(0, 5))
def test_the_exit_rule_is_the_first_strictly_lower_error(seed, ramps):
    rng = np.random.default_rng(seed)
    errors, thresholds = rng.integers(0, 5, (9, ramps)) / 4, rng.integers(0, 5, ramps) / 4
    expected = [next((j for j in range(ramps) if row[j] < thresholds[j]), ramps) for row in errors]
    assert exit_ramps(errors.astype(np.float32), thresholds).tolist() == expected


@given(st.integers(0, 2**32 - 1))
def test_a_replay_adds_up_each_record_at_its_own_batch_size(seed):
    catalog = even_catalog(3, batch_sizes=(1, 4))
    records = noisy_records(seed, 40, 3, batch_sizes=(1, 2, 4, 9))
    thresholds = np.random.default_rng(seed).uniform(0, 0.4, 3)
    left_at = exit_ramps(records.errors, thresholds)
    rows = [0 if size == 1 else 1 for size in records.batch]
    taken = [catalog.exit_ms(range(3))[row, j] for row, j in zip(rows, left_at, strict=True)]
    plain = [catalog.full_ms[row] for row in rows]
    found = replay(records, thresholds, catalog, range(3))
    assert found.mean_ms == pytest.approx(np.mean(taken))
    assert found.saving == pytest.approx((sum(plain) - sum(taken)) / sum(plain))
    assert found.wrong == sum(not records.agree[i, j] for i, j in enumerate(left_at) if j < 3)
    assert sum(found.exits) == found.n == 40


def test_an_empty_window_cannot_be_replayed():
    with pytest.raises(ValueError, match="empty window"):
        replay(noisy_records(0, 0, 2), [0.1, 0.1], even_catalog(2), range(2))


@pytest.mark.parametrize(
    ("thresholds", "active", "told"), [([0.1], [0, 1], "1 thresholds for 2"), ([0.1] * 2, [0], "2 ramps, there are 1")]
)
def test_numbers_of_ramps_that_differ_are_refused(thresholds, active, told):
    with pytest.raises(ValueError, match=told):
        replay(noisy_records(0, 5, 2), thresholds, even_catalog(2), active)
