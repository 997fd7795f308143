"""Figures: percentiles, agreement of pairs and its exact bound, exit rates, the report's shape."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from apparate_demo.client import Outcome
from apparate_demo.results import (
    Pair,
    agrees,
    collect,
    comparison,
    exit_rates,
    lower_bound,
    percentiles,
    rolling_agreement,
)

RNG = np.random.default_rng(1)


def an_outcome(labels=(0, 1, 1, 0), took_ms=10.0, lag_ms=1.0, ramp=-1, error="") -> Outcome:
    n = len(labels)
    scheduled = np.arange(n) * 0.1
    sent = scheduled + lag_ms / 1e3
    done = np.where(np.array(labels) < 0, np.nan, sent + took_ms / 1e3)
    ramps = np.full(n, ramp, np.int64)
    return Outcome(scheduled, sent, done, np.arange(n), np.array(labels), ramps, np.full(n, 3), error)


def test_latency_counts_from_the_time_the_trace_says():
    assert collect([an_outcome()]).latency == pytest.approx([11.0] * 4)


def test_lag_of_the_client_is_kept_apart():
    answers = collect([an_outcome()])
    assert answers.lag == pytest.approx([1.0] * 4) and answers.from_sent == pytest.approx([10.0] * 4)


def test_percentiles_are_values_that_occurred():
    assert percentiles(np.arange(1.0, 101)) == {"p25_ms": 26.0, "p50_ms": 51.0, "p95_ms": 96.0, "p99_ms": 100.0}


def test_a_request_without_an_answer_is_infinitely_slow():
    assert percentiles(np.array([1.0, np.nan]))["p99_ms"] == np.inf


def test_agreement_compares_answers_to_the_same_input():
    plain, exits = collect([an_outcome((0, 1, 1, 0))]), collect([an_outcome((0, 1, 0, 0))])
    assert agrees(plain, exits).tolist() == [True, True, False, True]


def test_pairs_with_a_missing_answer_are_left_out_of_the_agreement():
    plain, exits = collect([an_outcome((0, -1, 1, 0))]), collect([an_outcome((0, 1, 1, -1))])
    assert agrees(plain, exits).tolist() == [True, True]


@pytest.mark.parametrize(("agreeing", "total"), [(10, 10), (990, 1000), (9_905, 10_000), (1, 3), (150_000, 151_000)])
def test_the_lower_bound_is_the_exact_binomial_one(agreeing, total):
    assert lower_bound(agreeing, total) == pytest.approx(stats.beta.ppf(0.05, agreeing, total - agreeing + 1), abs=1e-7)


def test_the_lower_bound_of_nothing_is_nothing():
    assert lower_bound(0, 0) == lower_bound(0, 5) == 0.0


def test_rolling_agreement_is_the_mean_of_each_window():
    same = RNG.random(50) < 0.9
    assert rolling_agreement(same, 10) == pytest.approx([same[i : i + 10].mean() for i in range(41)])


def test_rolling_agreement_of_a_short_run_is_that_of_all_of_it():
    assert rolling_agreement(np.array([True, False]), 10).tolist() == [0.5]


def test_exit_rates_are_by_layer_and_sum_to_one():
    rates = exit_rates(collect([an_outcome(ramp=1), an_outcome(ramp=-1)]), ["a", "b"])
    assert rates == {"b": 0.5, "final": 0.5}


def test_the_comparison_has_what_scripts_read():
    pair = Pair(plain=an_outcome(took_ms=10, lag_ms=0), exits=an_outcome(took_ms=4, lag_ms=0, ramp=0))
    throughput = {"plain": [100.0, 90.0, 110.0], "exits": [99.0, 90.0, 108.0]}
    told = comparison([pair], layers=["a"], budget=0.01, throughput=throughput)
    assert told["saving_p50"] == pytest.approx(0.6)
    assert set(told["vanilla"]) == {"p25_ms", "p50_ms", "p95_ms", "p99_ms", "throughput_rps"} == set(told["apparate"])
    assert told["agreement"] == 1.0 and told["throughput_ratio"] == pytest.approx(0.99)


def test_requests_without_an_answer_are_counted_and_explained():
    pair = Pair(plain=an_outcome(), exits=an_outcome((0, -1, 1, 0), error="queue full"))
    told = comparison([pair], layers=[], budget=0.01, throughput={"plain": [], "exits": []})
    assert (told["errors"], told["first_error"]) == (1, "queue full")
