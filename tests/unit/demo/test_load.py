"""Arrivals: scaled by one factor, cut into slices that both sides share."""

from __future__ import annotations

import numpy as np
import pytest

from apparate_demo.assets import asset
from apparate_demo.load import burstiness, cut, describe, plan_slices, read_gaps, scaled_arrivals, slice_seconds

GAPS = np.array([1.0, 3.0, 1.0, 5.0])


def test_arrivals_start_at_zero_and_come_at_the_rate_asked_for():
    arrivals = scaled_arrivals(GAPS, 400, rate=50)
    assert arrivals[0] == 0 and 400 / (arrivals[-1] + GAPS[0] * 8 / 1000) == pytest.approx(50, rel=0.01)


def test_scaling_keeps_the_burstiness_of_the_trace():
    assert burstiness(scaled_arrivals(GAPS, 401, rate=7)) == pytest.approx(GAPS.var() / GAPS.mean() ** 2, rel=0.02)


def test_the_shipped_trace_is_burstier_than_poisson():
    gaps = read_gaps(asset("azure_llm_conv_2023_arrivals.csv"))
    assert len(gaps) == 9753 and gaps.var() / gaps.mean() ** 2 > 1.1


def test_a_trace_that_does_not_rise_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("arrival_s\n0\n2\n1\n")
    with pytest.raises(ValueError, match="rising"):
        read_gaps(tmp_path / "t.csv")


def test_slices_hold_every_arrival_once_and_inputs_in_order():
    slices = cut(scaled_arrivals(GAPS, 100, rate=10), seconds=2.0, inputs=7)
    assert np.concatenate([s.items for s in slices]).tolist() == [i % 7 for i in range(100)]


def test_arrivals_of_a_slice_lie_within_it():
    slices = cut(scaled_arrivals(GAPS, 100, rate=10), seconds=2.0, inputs=7)
    assert all((s.arrivals >= 0).all() and (s.arrivals < 2).all() for s in slices)


@pytest.mark.parametrize(
    ("seconds", "pairs", "length"), [(2, 1, 1.0), (6, 3, 1.0), (60, 10, 3.0), (120, 10, 6.0), (600, 50, 6.0)]
)
def test_a_run_is_cut_into_pairs_of_equal_slices(seconds, pairs, length):
    assert slice_seconds(seconds) == (pairs, pytest.approx(length))


def test_the_mean_load_of_the_slices_is_the_load_asked_for():
    slices = plan_slices(GAPS, seconds=20, rate=40, inputs=9)
    assert sum(len(s) for s in slices) == 400
    told = describe(slices, capacity=80)
    assert told["slice_load_min"] <= 0.5 <= told["slice_load_max"]
