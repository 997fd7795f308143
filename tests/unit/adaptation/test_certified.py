import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binom

from apparate.adaptation.binomial import certified_count, tail, upper_bound
from apparate.adaptation.certified import accepted, certified, chain_wrong, split_window
from apparate.adaptation.cuts import allowed_wrong
from apparate.adaptation.exits import count_wrong, exit_ramps, replay
from support.method import even_catalog, noisy_records

POPULATIONS = 200


@pytest.mark.parametrize("split", ["interleaved", "ordered"])
@pytest.mark.parametrize("n", [0, 1, 49, 50, 51, 512, 8192])
def test_the_parts_of_a_split_are_the_window(n, split):
    searched, checked = split_window(n, split)
    assert sorted([*searched, *checked]) == list(range(n))
    assert n < 500 or len(searched) / n == pytest.approx(0.3, abs=0.03)


def test_interleaved_parts_see_all_of_the_windows_time_and_ordered_ones_do_not():
    searched, checked = split_window(8000, "interleaved")
    assert abs(searched.mean() - checked.mean()) < 100
    searched, checked = split_window(8000, "ordered")
    assert searched.max() < checked.min()


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_disagreements_along_a_chain_are_those_of_each_configuration(seed, ramps):
    records = noisy_records(seed, 60, ramps, decimals=2)
    steps = np.sort(np.random.default_rng(seed).integers(0, 30, (9, ramps)) / 60, axis=0)
    expected = [count_wrong(records, exit_ramps(records.errors, thresholds)) for thresholds in steps]
    assert chain_wrong(records, steps).tolist() == expected


def test_a_walk_stops_at_the_first_that_fails():
    assert accepted(np.array([0, 2, 5, 1]), 4) == 2
    assert accepted(np.array([0, 2, 1]), 4) == 3
    assert accepted(np.array([0]), -1) == 0


def test_a_chain_goes_from_closed_to_the_end_of_the_search():
    records = noisy_records(5, 2000, 4, decimals=3)
    found = certified(records, even_catalog(4), range(4), 0.02)
    searched = records.take(split_window(2000, "interleaved")[0])
    assert (found.chain.thresholds[0] == 0).all()
    assert 40 <= chain_wrong(searched, found.chain.thresholds)[-1] * 2.5 <= 0.04 * 600 * 2.5
    assert tuple(found.chain.thresholds[found.step]) == found.thresholds
    assert found.step > 0


def test_no_step_of_a_chain_is_a_leap():
    records, catalog = noisy_records(5, 2048, 4), even_catalog(4)
    chain = certified(records, catalog, range(4), 0.02).chain
    savings = [replay(records, thresholds, catalog, range(4)).saving for thresholds in chain.thresholds]
    assert np.diff(savings).max() <= 0.1 * max(savings)


def test_too_few_records_certify_nothing_and_everything_stays_closed():
    found = certified(noisy_records(1, 400, 3), even_catalog(3), range(3), 0.01)
    assert (found.certified, found.allowance, found.upper_bound) == (False, -1, None)
    assert found.thresholds == (0.0, 0.0, 0.0)


def test_few_records_do_for_a_larger_budget():
    assert certified(noisy_records(1, 400, 3), even_catalog(3), range(3), 0.1).certified


def test_the_upper_bound_is_that_of_the_records_that_certified():
    records = noisy_records(2, 4096, 4)
    found = certified(records, even_catalog(4), range(4), 0.02, 0.9)
    checked = records.take(split_window(4096, "interleaved")[1])
    wrong = replay(checked, found.thresholds, even_catalog(4), range(4)).wrong
    assert found.checked == len(checked)
    assert found.upper_bound == pytest.approx(beta.ppf(0.9, wrong + 1, len(checked) - wrong))
    assert found.upper_bound <= 0.02


def test_more_confidence_saves_no_more():
    records = noisy_records(4, 4096, 4)
    savings = [
        certified(records, even_catalog(4), range(4), 0.02, confidence).replay.saving
        for confidence in (0.5, 0.95, 0.999)
    ]
    assert savings == sorted(savings, reverse=True)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_only_the_part_a_record_falls_in_matters_not_its_place_there(seed):
    records, rng = noisy_records(seed, 1500, 3, decimals=2), np.random.default_rng(seed)
    order = np.arange(1500)
    for part in split_window(1500, "interleaved"):
        order[part] = rng.permutation(part)
    a, b = (certified(r, even_catalog(3), range(3), 0.03) for r in (records, records.take(order)))
    assert (a.replay, a.upper_bound, a.step) == (b.replay, b.upper_bound, b.step)


def test_the_certificate_keeps_its_promise():
    """The true loss of what is deployed, over fresh records, exceeds the budget in no more than delta of all cases."""
    eps, delta, catalog = 0.01, 0.05, even_catalog(4)
    fresh = noisy_records(10_000_000, 200_000, 4)
    over, opened = 0, 0
    for seed in range(POPULATIONS):
        found = certified(noisy_records(seed, 2048, 4), catalog, range(4), eps, 1 - delta)
        over += replay(fresh, found.thresholds, catalog, range(4)).loss > eps
        opened += any(found.thresholds)
    assert over <= binom.ppf(0.99, POPULATIONS, delta)
    assert opened >= 0.9 * POPULATIONS  # it is not kept by staying closed


@settings(deadline=None)
@given(st.integers(1, 5000), st.floats(1e-4, 0.5), st.data())
def test_binomial_limits_equal_scipys(n, share, data):
    count = data.draw(st.integers(0, min(n, 200)))
    assert tail(count, n, share) == pytest.approx(binom.cdf(count, n, share), rel=1e-9, abs=1e-250)
    bound = upper_bound(count, n, 0.05)
    assert bound == pytest.approx(beta.ppf(0.95, count + 1, n - count) if count < n else 1.0, rel=1e-9)
    allowance = certified_count(n, share, 0.05)
    assert allowance < 0 or binom.cdf(allowance, n, share) <= 0.05
    assert binom.cdf(allowance + 1, n, share) > 0.05


def test_a_budget_is_inclusive_whatever_binary_makes_of_it():
    assert [allowed_wrong(0.07, 100), allowed_wrong(0.29, 100), allowed_wrong(0.01, 99)] == [7, 29, 0]
