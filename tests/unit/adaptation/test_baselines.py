import numpy as np
import pytest

from apparate.adaptation.baselines.hindsight import hindsight
from apparate.adaptation.baselines.never import never
from apparate.adaptation.baselines.oracle import oracle
from apparate.adaptation.baselines.patience import patience_exits
from apparate.adaptation.baselines.shared_threshold import shared_threshold
from apparate.adaptation.baselines.static_even import static_even
from apparate.adaptation.cuts import allowed_wrong
from apparate.adaptation.exits import replay
from apparate.adaptation.thresholds import Method, tune
from apparate.feedback import Records
from support.brute_force import best_of
from support.method import even_catalog, noisy_records

CATALOG, ACTIVE = even_catalog(4, batch_sizes=(1, 4)), range(4)


def window(seed: int, n: int = 1500) -> Records:
    return noisy_records(seed, n, 4, batch_sizes=(1, 3))


def test_the_plain_model_saves_and_loses_nothing():
    found = never(window(0), CATALOG)
    assert (found.saving, found.wrong, found.exits) == (0.0, 0, (1500,))


@pytest.mark.parametrize("seed", range(3))
def test_nobody_saves_more_than_the_oracle_and_no_tuner_more_than_hindsight(seed):
    records = window(seed)
    best = hindsight(records, CATALOG, ACTIVE, 0.02)
    assert oracle(records, CATALOG, ACTIVE).saving >= best.saving
    assert oracle(records, CATALOG, ACTIVE).wrong == 0
    for method in Method:
        assert best.saving >= tune(records, CATALOG, ACTIVE, max_loss=0.02, method=method).replay.saving
    assert best.saving >= shared_threshold(records, CATALOG, ACTIVE, 0.02).saving


def test_the_oracle_leaves_at_the_first_right_ramp_and_never_later_than_the_model():
    agree = np.array([[False, True, True, True], [False, False, False, False]])
    records = Records(np.ones((2, 4), np.float32), agree, np.ones(2, int))
    found = oracle(records, CATALOG, ACTIVE)
    assert found.exits == (0, 1, 0, 0, 1)
    assert found.mean_ms == pytest.approx((CATALOG.exit_ms(ACTIVE)[0, 1] + 10.0) / 2)


def test_one_shared_threshold_is_the_best_of_its_grid():
    records = window(1, 200)
    found = shared_threshold(records, CATALOG, ACTIVE, 0.05)
    grid = [(i / 1000,) * 4 for i in range(1001)]
    assert found.saving == pytest.approx(best_of(records, CATALOG, ACTIVE, 0.05, grid).saving)
    assert found.wrong <= allowed_wrong(0.05, 200)
    assert len(set(found.thresholds)) == 1


def test_static_thresholds_come_from_the_first_window_alone():
    first, later = window(1), window(2)
    found = static_even(first, later, CATALOG, ACTIVE, 0.02)
    tuned = tune(first, CATALOG, ACTIVE, max_loss=0.02, method=Method.SWEEP)
    assert found == replay(later, tuned.thresholds, CATALOG, ACTIVE)


def test_patience_waits_for_equal_answers_in_a_row():
    labels = np.array([[1, 1, 2, 2], [1, 2, 2, 2], [1, 2, 1, 2]])
    assert patience_exits(labels, 1).tolist() == [0, 0, 0]
    assert patience_exits(labels, 2).tolist() == [1, 2, 4]
    assert patience_exits(labels, 3).tolist() == [4, 3, 4]


def test_patience_below_one_is_refused():
    with pytest.raises(ValueError, match="patience is 0"):
        patience_exits(np.zeros((1, 2), int), 0)
