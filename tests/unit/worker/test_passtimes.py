"""What a pass will take: the profile's word, corrected by what passes took."""

import numpy as np
import pytest

from apparate.catalog import RampCatalog
from apparate_worker.passtimes import PassTimes


def a_catalog(sizes, full_ms):
    return RampCatalog(sizes, np.zeros((len(sizes), 0)), np.zeros((len(sizes), 0)), np.array(full_ms, float))


def test_unmeasured_sizes_lie_on_the_profiles_lines_and_in_proportion_beyond():
    times = PassTimes.of_catalog(a_catalog((1, 4), [2.0, 5.0]), 8)
    assert [times.of(n) * 1e3 for n in (1, 2, 3, 4, 8)] == pytest.approx([2, 3, 4, 5, 10])


def test_four_of_five_passes_take_less_than_is_said_of_them():
    random = np.random.default_rng(0)
    times, less = PassTimes([0.0, 1.0]), []
    for seconds in 5.0 * np.exp(random.normal(0, 0.1, 2000)):
        less.append(seconds < times.of(1))
        times.took(1, seconds)
    assert np.mean(less[500:]) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("took", [0.01, 100.0])
def test_a_profile_that_is_wrong_by_orders_of_magnitude_is_corrected_within_a_dozen_passes(took):
    times = PassTimes([0.0, 1.0])
    for _ in range(12):
        times.took(1, took)
    assert took / 2 < times.of(1) < 2 * took


def test_one_slow_pass_moves_little():
    times = PassTimes([0.0, 1.0])
    times.took(1, 100.0)
    assert times.of(1) < 1.1


def test_a_size_never_run_is_as_far_from_the_profile_as_the_one_run_last():
    times = PassTimes([0.0, 1.0, 1.5])
    for _ in range(100):
        times.took(1, 3.0)
    assert times.of(2) == pytest.approx(1.5 * times.of(1))


def test_a_size_that_was_slow_long_ago_is_believed_no_slower_than_the_others_say():
    times = PassTimes([0.0, 1.0, 2.0, 3.0])
    for rows in (3, 2):
        for _ in range(100):
            times.took(rows, 50.0)
    for _ in range(300):
        times.took(2, 2.0)
    assert times.of(3) < 5.0
    assert times.of(1) < 3.0


def test_many_items_take_whole_batches_and_a_rest():
    times = PassTimes([0.0, 1.0, 1.5, 2.0])
    assert times.of_all(7, 3) == pytest.approx(2.0 + 2.0 + 1.0)
    assert times.of_all(0, 3) == 0.0


@pytest.mark.parametrize("profile", [[0.0], [0.0, 0.0], [0.0, 1.0, -1.0]])
def test_a_profile_that_cannot_be_true_is_refused(profile):
    with pytest.raises(ValueError, match="positive"):
        PassTimes(profile)
