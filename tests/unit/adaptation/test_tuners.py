"""What holds of every tuner, and how near the searches come to the optimum."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apparate.adaptation.cuts import GRID, allowed_wrong, thresholds_between
from apparate.adaptation.exits import replay
from apparate.adaptation.thresholds import Method, tune
from apparate.feedback import Records
from support.brute_force import exact_optimum
from support.method import even_catalog, noisy_records

SEEDS = st.integers(0, 2**32 - 1)
METHODS = list(Method)
ON_THE_WINDOW = [Method.SWEEP, Method.HILL_CLIMB]


def tuned(records: Records, method: Method, max_loss: float):
    return tune(
        records, even_catalog(records.ramps, batch_sizes=(1, 4)), range(records.ramps), max_loss=max_loss, method=method
    )


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=40)
@given(SEEDS, st.floats(0, 0.2), st.integers(1, 400), st.integers(1, 5))
def test_tuning_never_loses_more_than_its_budget_on_the_window(method, seed, max_loss, n, ramps):
    found = tuned(noisy_records(seed, n, ramps, decimals=2), method, max_loss).replay
    assert found.wrong <= allowed_wrong(max_loss, n)


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=30)
@given(SEEDS, st.floats(0, 0.2))
def test_tuning_is_never_worse_than_all_ramps_closed(method, seed, max_loss):
    records = noisy_records(seed, 200, 4, batch_sizes=(1, 3))
    closed = replay(records, [0.0] * 4, even_catalog(4, batch_sizes=(1, 4)), range(4))
    assert tuned(records, method, max_loss).replay.saving >= closed.saving


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=20)
@given(SEEDS)
def test_tuning_twice_gives_the_same(method, seed):
    records = noisy_records(seed, 300, 3, batch_sizes=(1, 2, 4))
    assert tuned(records, method, 0.05).replay == tuned(records, method, 0.05).replay


@pytest.mark.parametrize("method", ON_THE_WINDOW)
@settings(deadline=None, max_examples=40)
@given(SEEDS, st.sampled_from([1, 2, 9]))
def test_the_order_of_records_does_not_matter(method, seed, decimals):
    records = noisy_records(seed, 150, 4, batch_sizes=(1, 2, 4), decimals=decimals)
    shuffled = records.take(np.random.default_rng(seed).permutation(150))
    assert tuned(records, method, 0.05).replay == tuned(shuffled, method, 0.05).replay


@pytest.mark.parametrize("method", METHODS)
def test_an_empty_window_cannot_be_tuned(method):
    with pytest.raises(ValueError, match="empty window"):
        tuned(noisy_records(0, 0, 2), method, 0.01)


@pytest.mark.parametrize("method", METHODS)
def test_thresholds_are_valid_in_a_plan(method):
    found = tuned(noisy_records(3, 900, 4, decimals=1), method, 0.2).thresholds
    assert all(0.0 <= t <= 1.0 for t in found)


@pytest.mark.parametrize(("ramps", "n"), [(1, 60), (2, 40), (3, 16)])
def test_the_sweep_is_within_a_hair_of_the_exact_optimum(ramps, n):
    gaps = []
    for seed in range(12):
        records, catalog = noisy_records(seed, n, ramps, decimals=2), even_catalog(ramps, batch_sizes=(1, 4))
        exact = exact_optimum(records, catalog, range(ramps), 0.08)
        found = tuned(records, Method.SWEEP, 0.08).replay
        assert found.saving <= exact.saving + 1e-12
        gaps.append(exact.saving - found.saving)
    assert np.mean(gaps) <= 0.001, gaps
    assert sum(gap <= 1e-9 for gap in gaps) >= 11


@pytest.mark.parametrize("ramps", [1, 2, 3])
def test_the_hill_climb_is_near_the_exact_optimum(ramps):
    gaps = []
    for seed in range(8):
        records, catalog = noisy_records(seed, 16, ramps, decimals=2), even_catalog(ramps, batch_sizes=(1, 4))
        exact = exact_optimum(records, catalog, range(ramps), 0.08)
        gaps.append(exact.saving - tuned(records, Method.HILL_CLIMB, 0.08).replay.saving)
    assert min(gaps) >= -1e-12
    assert np.mean(gaps) <= 0.05, gaps


@given(st.floats(0, 1, width=32), st.floats(0, 1, width=32))
def test_a_threshold_parts_two_errors_as_the_exit_rule_compares(a, b):
    below, above = sorted((np.float32(a), np.float32(b)))
    threshold = np.float32(thresholds_between(below, above))
    assert 0.0 <= threshold <= 1.0
    assert not above < threshold
    assert below < threshold or below == above


@given(st.integers(0, GRID - 2))
def test_a_threshold_is_a_whole_ten_thousandth_where_there_is_room(step):
    below = np.float32(step / GRID)
    assert thresholds_between(below, np.float32(1)) == (step + 1) / GRID
