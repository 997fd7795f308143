"""Which ramps a model keeps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apparate_worker.prepare.choosing import choose
from apparate_worker.prepare.profiling import Profile


def a_profile(reach: list[float], overhead: float = 0.001) -> Profile:
    """Ramps reached after some shares of a pass of 1 ms, at one batch size."""
    return Profile((1,), np.array([reach]), np.full((1, len(reach)), overhead), np.ones(1))


def leave(*shares: float, records: int = 100) -> npt.NDArray[np.bool_]:
    """[records, R]: each ramp lets go the first share of the records."""
    return np.arange(records)[:, None] < records * np.array(shares)


def test_ramps_far_apart_are_all_kept():
    assert choose(a_profile([0.1, 0.3, 0.5]), leave(0.1, 0.2, 0.3)) == [0, 1, 2]


def test_of_two_near_each_other_the_one_that_saves_more_is_kept():
    assert choose(a_profile([0.30, 0.32, 0.7]), leave(0.5, 0.7, 0.9)) == [1, 2]


def test_no_more_are_kept_than_can_be_watched():
    reach = np.linspace(0.01, 0.95, 20)
    assert len(choose(a_profile(list(reach)), leave(*reach), most=6, gap=0.01)) == 6


def test_a_late_ramp_for_those_that_stay_is_worth_more_than_a_second_early_one():
    assert choose(a_profile([0.1, 0.2, 0.8]), leave(0.50, 0.52, 1.0), most=2) == [0, 2]


def test_a_ramp_that_answers_after_the_pass_is_dropped():
    assert choose(a_profile([0.5, 0.9995], overhead=0.01), leave(0.5, 1.0)) == [0]


def test_a_model_keeps_at_least_one_ramp():
    assert choose(a_profile([0.5], overhead=2.0), leave(0.0)) == [0]


def test_ramps_that_let_nobody_go_yet_are_kept_for_other_traffic():
    assert choose(a_profile([0.2, 0.6]), leave(0.0, 0.0)) == [0, 1]


def test_without_gain_the_ramp_farthest_from_the_others_is_taken():
    assert choose(a_profile([0.1, 0.2, 0.7]), leave(0.5, 0.0, 0.0), most=2) == [0, 2]
