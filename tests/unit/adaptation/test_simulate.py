import numpy as np
import pytest

from apparate.adaptation.scores import margin_error, max_probability_error, normalised_entropy
from apparate.adaptation.simulate import decode, serve_by_age, serve_by_deadline
from apparate.adaptation.trigger import RecentAgreement

EXEC_MS = {1: 10.0, 2: 12.0, 4: 16.0}


@pytest.mark.parametrize("seed", range(5))
def test_every_request_is_served_or_dropped_once_and_passes_do_not_overlap(seed):
    arrivals = np.sort(np.random.default_rng(seed).uniform(0, 400, 60)).tolist()
    for served in (
        serve_by_age(arrivals, EXEC_MS, max_batch=4, max_wait_ms=5.0),
        serve_by_deadline(arrivals, EXEC_MS, objective_ms=30.0),
    ):
        ids = [i for batch in served.batches for i in batch.ids]
        assert sorted([*ids, *served.dropped]) == list(range(60))
        ends = [batch.start + EXEC_MS[batch.size] for batch in served.batches]
        assert all(end <= later.start for end, later in zip(ends, served.batches[1:], strict=False))
        assert all(wait >= 0 for batch in served.batches for wait in batch.wait)
        assert served.end == ends[-1]


def test_no_request_in_time_misses_its_deadline():
    arrivals = np.sort(np.random.default_rng(1).uniform(0, 400, 60)).tolist()
    served = serve_by_deadline(arrivals, EXEC_MS, objective_ms=30.0)
    assert all(max(b.wait) + EXEC_MS[b.size] <= 30.0 for b in served.batches)


def test_no_trace_is_no_work():
    assert serve_by_age([], EXEC_MS, max_batch=4, max_wait_ms=1.0).end == 0.0


def test_a_batch_larger_than_any_supported_is_refused():
    with pytest.raises(ValueError, match="largest supported batch is 4, asked for 8"):
        serve_by_age([0.0], EXEC_MS, max_batch=8, max_wait_ms=1.0)


def test_a_closed_ramp_defers_nothing():
    decoded = decode([0.0, 0.0], 0.0, head_ms=5, ramp_ms=1, tail_ms={1: 4}, cap=3)
    assert decoded.flushes == ((0,), (1,))
    assert decoded.release == (10.0, 20.0)


def test_the_trigger_is_silent_until_its_window_is_full():
    recent = RecentAgreement(0.01)
    assert [recent.observe(False) for _ in range(16)] == [False] * 15 + [True]


def test_scores_are_0_for_certainty_and_1_for_none():
    sure, unsure = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])
    assert max_probability_error(sure)[0] == margin_error(sure)[0] == normalised_entropy(sure)[0] == 0.0
    assert max_probability_error(unsure)[0] == 0.5
    assert margin_error(unsure)[0] == normalised_entropy(unsure)[0] == 1.0
