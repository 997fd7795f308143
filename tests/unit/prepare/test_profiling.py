"""Profiles: sizes, what is refused, and which poolings the budget bears. Nothing here asserts a speed."""

from __future__ import annotations

import numpy as np
import pytest

from apparate.catalog import RampCatalog
from apparate_worker.model.errors import InvalidProfile
from apparate_worker.prepare.bootstrap import BootstrapData
from apparate_worker.prepare.profiling import affordable, batch_sizes, fitted, profile
from support.nets import CPU, IMAGE, Residual, in_pieces, pixels, seeded, traced


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (8, (1, 2, 4, 8)), (6, (1, 2, 4, 6)), (64, (1, 2, 4, 8, 16, 32, 64))]
)
def test_sizes_are_powers_of_two_up_to_the_largest_batch(most: int, sizes: tuple[int, ...]):
    assert batch_sizes(most) == sizes


def test_a_segment_that_takes_no_time_is_refused():
    with pytest.raises(InvalidProfile, match="segment 1 took"):
        fitted((4,), np.array([[1.0, 1.0, 2.0]]), np.zeros((1, 2)), np.array([2.0]))


def test_segments_may_take_as_much_longer_as_a_disturbed_pass_does():
    reach, fastest = np.array([[1.0, 2.0, 3.0]]), np.array([1.7])
    with pytest.raises(InvalidProfile):
        fitted((4,), reach, np.zeros((1, 2)), fastest)
    assert fitted((4,), reach, np.zeros((1, 2)), fastest, np.array([2.4])).full_ms[0] == 3.0


def test_segments_that_do_not_add_up_to_the_whole_are_refused():
    with pytest.raises(InvalidProfile, match="too busy to measure on"):
        fitted((4,), np.array([[1.0, 2.0, 3.0]]), np.zeros((1, 2)), np.array([1.0]))


def test_the_whole_pass_is_the_sum_of_its_segments():
    found = fitted((4,), np.array([[1.0, 2.0, 3.0]]), np.zeros((1, 2)), np.array([2.9]))
    assert (found.reach_ms.tolist(), found.full_ms.tolist()) == ([[1.0, 2.0]], [3.0])


def test_the_cheapest_pooling_is_always_affordable():
    assert affordable(np.array([[5.0], [9.0]]), np.array([10.0]), 0.02) == [0]


def test_a_pooling_that_costs_hardly_more_is_affordable_too():
    assert affordable(np.array([[0.10, 0.1], [0.15, 0.1], [0.1, 0.3]]), np.array([10.0, 10.0]), 0.02) == [0, 1]


def test_a_measured_profile_makes_a_valid_catalog():
    _, running = in_pieces(traced(seeded(Residual()), [IMAGE], {"pixels": pixels(2)}), [IMAGE])
    data = BootstrapData({"pixels": pixels(8)}, (IMAGE,), None)
    found = profile(running, [], data, (1, 2), CPU, lambda _: None, budget_s=0.0)
    catalog = RampCatalog(found.batch_sizes, found.reach_ms, np.zeros((2, 4)), found.full_ms)
    assert catalog.ramps == 4
