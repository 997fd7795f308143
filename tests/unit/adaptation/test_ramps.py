import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apparate.adaptation.adjustment import adjust
from apparate.adaptation.exits import replay
from apparate.adaptation.ramps import choose_ramps, even_spacing, probe, set_worth, spread, utilities
from apparate.adaptation.sweep import sweep
from apparate.catalog import RampCatalog
from apparate.feedback import Records
from apparate.plan import Plan
from support.method import even_catalog, noisy_records

SEEDS = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_a_utility_is_what_the_replay_loses_without_the_ramp(seed):
    catalog, active = even_catalog(5, overhead=0.03, batch_sizes=(1, 4)), (0, 1, 3, 4)
    records = noisy_records(seed, 80, 5, batch_sizes=(1, 2, 4)).columns(active)
    thresholds = np.random.default_rng(seed).uniform(0, 0.4, 4)
    whole = replay(records, thresholds, catalog, active).mean_ms
    for j, worth in enumerate(utilities(records, thresholds, catalog, active)):
        rest = [i for i in range(4) if i != j]
        without = replay(records.columns(rest), thresholds[rest], catalog, [active[i] for i in rest])
        assert worth == pytest.approx(without.mean_ms - whole)


@pytest.mark.parametrize("ramps", range(1, 14))
@pytest.mark.parametrize("budget", [0.0, 0.004, 0.02, 0.5])
def test_the_first_ramps_fill_the_overhead_budget_and_are_all_different(ramps, budget):
    catalog = even_catalog(ramps)
    active = even_spacing(catalog, budget)
    assert len(active) == len(set(active)) == catalog.max_active_ramps(budget)
    assert catalog.fits(active, budget)
    assert list(active) == sorted(active)


def test_the_first_ramps_are_feasible_where_some_sites_are_not():
    reach, overhead = np.linspace(1, 9.5, 8)[None], np.full((1, 8), 0.1)
    overhead[0, 2:4] = 9.0  # these answer later than the model itself
    catalog = RampCatalog((1,), reach, overhead, [10.0])
    active = even_spacing(catalog, 0.03)
    assert len(active) == 3
    assert set(active) <= set(catalog.feasible())


def test_dear_ramps_leave_room_for_fewer():
    overhead = np.array([[0.1, 0.3, 0.3, 0.1]])
    catalog = RampCatalog((1,), [[1, 2, 3, 4]], overhead, [10.0])
    assert catalog.max_active_ramps(0.025) == 2
    assert catalog.fits(even_spacing(catalog, 0.025), 0.025)


def test_even_spacing_leaves_both_ends_free():
    assert spread(3, 12) == (2, 5, 8)
    assert spread(1, 3) == (1,)


@settings(deadline=None, max_examples=10)
@given(SEEDS)
def test_chosen_ramps_fit_the_budget_and_are_worth_no_less_than_even_spacing(seed):
    catalog = even_catalog(7, batch_sizes=(1, 4))
    records = noisy_records(seed, 200, 7, batch_sizes=(1, 4))
    chosen, even = choose_ramps(records, catalog, 0.012, 0.03), even_spacing(catalog, 0.012)
    assert catalog.fits(chosen, 0.012)
    found = [
        set_worth(sweep(records.columns(s), catalog, s, 0.03, polish_cells=0).saving, len(s)) for s in (chosen, even)
    ]
    assert found[0] >= found[1]


def test_exchanges_reach_the_best_of_all_sets(monkeypatch):
    catalog = even_catalog(8)
    for seed in range(4):
        records = noisy_records(seed, 400, 8)
        every_set = choose_ramps(records, catalog, 0.012, 0.03)
        monkeypatch.setattr("apparate.adaptation.ramps.EXHAUSTIVE_SETS", 0)
        exchanged = choose_ramps(records, catalog, 0.012, 0.03)
        monkeypatch.undo()
        found = [
            set_worth(sweep(records.columns(s), catalog, s, 0.03, polish_cells=0).saving, len(s))
            for s in (exchanged, every_set)
        ]
        assert found[0] >= found[1] - 0.002


def test_one_ramp_is_chosen_even_when_none_saves_time():
    records = Records(np.ones((50, 3), np.float32), np.ones((50, 3), bool), np.ones(50, int))
    assert len(choose_ramps(records, even_catalog(3), 0.02, 0.01)) == 1


def test_no_ramp_is_chosen_when_none_fits_the_budget():
    assert choose_ramps(noisy_records(0, 50, 3), even_catalog(3), 0.001, 0.01) == ()


def test_the_cheapest_ramp_is_deployed_where_the_one_in_the_middle_costs_too_much():
    catalog = RampCatalog((1,), [[2.0, 4.0, 6.0]], [[0.1, 0.9, 0.9]], [10.0])
    assert even_spacing(catalog, 0.02) == (0,)
    assert even_spacing(catalog, 0.005) == ()


def test_candidates_may_be_some_of_the_ramps():
    records = noisy_records(0, 300, 6)
    chosen = choose_ramps(records.columns([1, 4]), even_catalog(6), 0.02, 0.05, candidates=[1, 4])
    assert set(chosen) <= {1, 4}


def a_plan(catalog: RampCatalog, **thresholds: float) -> Plan:
    ramps = [int(name[1:]) for name in thresholds]
    return Plan.of(3, ramps, thresholds.values(), catalog.digest)


def test_a_probe_drops_a_ramp_that_lets_nobody_go():
    catalog = even_catalog(6, overhead=0.008)
    plan = a_plan(catalog, r1=0.1, r4=0.0)
    records = noisy_records(0, 400, 6).columns(plan.active)
    change = probe(records, plan, catalog, 0.02)
    assert change is not None
    assert change.adjustment.dropped == (4,)
    assert change.plan.revision == 3
    assert dict(zip(change.plan.active, change.plan.thresholds, strict=True))[1] == np.float32(0.1)
    assert "ramp4 dropped, worth -" in change.message


def test_a_probe_adds_one_closed_ramp_before_the_most_useful():
    catalog = even_catalog(6)
    plan = a_plan(catalog, r1=0.1, r4=0.1)
    change = probe(noisy_records(0, 400, 6).columns(plan.active), plan, catalog, 0.02)
    assert change is not None
    (added,) = set(change.plan.active) - set(plan.active)
    assert dict(zip(change.plan.active, change.plan.thresholds, strict=True))[added] == 0.0
    assert f"ramp{added} added before ramp" in change.message


def test_a_barred_ramp_does_not_return():
    catalog = even_catalog(3)
    plan = a_plan(catalog, r2=0.1)
    records = noisy_records(0, 400, 3).columns(plan.active)
    change = probe(records, plan, catalog, 0.01, barred=[1])
    assert change is not None
    assert change.adjustment.added == 0


def test_there_is_nothing_to_probe_without_ramps_or_records():
    catalog = even_catalog(3)
    assert probe(noisy_records(0, 10, 0), Plan(1), catalog, 0.02) is None
    assert probe(noisy_records(0, 0, 1), a_plan(catalog, r1=0.1), catalog, 0.02) is None


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.floats(0.004, 0.05))
def test_a_probe_never_leaves_the_overhead_budget_nor_takes_the_last_ramp(seed, budget):
    catalog, rng = even_catalog(8, overhead=0.004), np.random.default_rng(seed)
    count = min(catalog.max_active_ramps(budget), 8)
    active = sorted(rng.choice(8, rng.integers(1, count + 1), replace=False).tolist())
    plan = Plan.of(1, active, rng.uniform(0, 0.2, len(active)), catalog.digest)
    change = probe(noisy_records(seed, 60, 8).columns(active), plan, catalog, budget)
    if change is not None:
        assert catalog.fits(change.plan.active, budget)
        assert change.plan.ramps
        assert len(set(change.plan.active) - set(active)) <= 1


def test_losing_the_last_ramp_needs_another_in_its_place():
    profile_of_one = {"feasible": [0], "active": [0], "utilities": [-1.0], "rates": [0.0, 1.0]}
    from apparate.adaptation.adjustment import Profile

    profile = Profile(np.array([5.0]), np.array([1.0]), 10.0)
    assert adjust(profile, **profile_of_one, fits=lambda ramps: True) is None
