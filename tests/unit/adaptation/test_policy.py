"""The policy in a closed loop with a worker's guard, on recorded-like traffic that stays, drifts and jumps."""

from dataclasses import replace

import numpy as np
import pytest

from apparate.adaptation import policy
from apparate.adaptation.policy import Budget, Memory, Reason
from apparate.catalog import RampCatalog
from apparate.contract.resource import Spec
from apparate.feedback import FINAL, FeedbackBatch, FeedbackWindow
from apparate.plan import Plan
from support.closed_loop import run

RAMPS = 5
REACH_MS = np.array([1.0, 2.5, 4.0, 6.0, 8.0])
CATALOG = RampCatalog((1, 8), [REACH_MS, REACH_MS * 4], [[0.09] * RAMPS, [0.3] * RAMPS], [10.0, 40.0])


def a_spec(**adaptation):
    document = {
        "model": {"source": "x", "entrypoint": "a:b"},
        "bootstrap": {"data": "x"},
        "adaptation": adaptation,
    }
    return Spec.model_validate(document)


def traffic(seed, n, *, hard=0.3, skill=1.0):
    """err, top1, final of n requests; `hard`: share of hard ones, `skill`: how well scores tell right from wrong."""
    rng = np.random.default_rng(seed)
    difficulty = np.where(rng.random(n) < hard, rng.uniform(0.5, 1.5, n), rng.uniform(0.0, 0.3, n))
    depth = REACH_MS / 10.0
    wrong_share = np.clip(difficulty[:, None] - depth, 0.0, 0.6)
    wrong = rng.random((n, RAMPS)) < wrong_share
    noise = rng.normal(0.0, 0.05, (n, RAMPS))
    err = np.clip(0.5 * (skill * np.where(wrong, wrong_share, 0.6 * wrong_share) + noise + 0.1), 0.001, 0.5)
    return err.astype(np.float32), wrong.astype(np.int32), np.zeros(n, np.int32)


@pytest.mark.parametrize("every_shadow", [4, 0])
@pytest.mark.parametrize("seed", [1, 2])
def test_on_steady_traffic_it_saves_within_the_budget(seed, every_shadow):
    outcome = run(a_spec(), CATALOG, *traffic(seed, 8000), every_shadow=every_shadow)
    assert outcome.wrong.mean() <= 0.01
    assert outcome.saving(CATALOG, slice(4000, None)) > 0.2


def test_nothing_leaves_before_a_certificate_is_possible():
    outcome = run(a_spec(), CATALOG, *traffic(1, 600))
    assert (outcome.exits[:500] == -1).all()


def test_after_a_jump_in_difficulty_the_loss_stays_within_the_budget():
    easy, hard = traffic(3, 5000, hard=0.02), traffic(4, 5000, hard=0.8, skill=0.2)
    outcome = run(a_spec(), CATALOG, *(np.concatenate(parts) for parts in zip(easy, hard, strict=True)))
    spent = np.cumsum(outcome.wrong)
    assert (spent <= 0.01 * np.arange(1, len(spent) + 1) + 2).all()
    assert outcome.alarms >= 1
    assert Reason.LOSS_ABOVE_BUDGET in {decision.reason for _, decision in outcome.decisions}


def test_savings_come_back_after_hard_traffic():
    parts = traffic(5, 4000, hard=0.05), traffic(6, 2000, hard=0.9, skill=0.1), traffic(7, 6000, hard=0.05)
    outcome = run(a_spec(window=2048), CATALOG, *(np.concatenate(p) for p in zip(*parts, strict=True)))
    assert outcome.saving(CATALOG, slice(-2000, None)) > 0.5 * outcome.saving(CATALOG, slice(2000, 4000)) > 0


def test_every_plan_keeps_the_ramp_budget_and_rises():
    outcome = run(a_spec(), CATALOG, *traffic(8, 6000))
    plans = [plan for _, plan in outcome.plans]
    assert all(CATALOG.fits(plan.active, 0.02) for plan in plans)
    assert [plan.revision for plan in plans] == list(range(1, len(plans) + 1))


def test_the_same_traffic_gives_the_same_plans():
    table = traffic(9, 3000)
    first, second = (run(a_spec(), CATALOG, *table) for _ in range(2))
    assert [p for _, p in first.plans] == [p for _, p in second.plans]


@pytest.mark.parametrize("name", ["sweep", "hill_climb"])
def test_the_other_tuners_run_the_same_loop(name):
    outcome = run(a_spec(policy=name), CATALOG, *traffic(10, 4000))
    assert outcome.saving(CATALOG) > 0.1
    assert outcome.wrong.mean() <= 0.01 + 2 / 4000  # the guard holds whatever the tuner does


def test_policy_never_is_the_plain_model():
    outcome = run(a_spec(policy="never"), CATALOG, *traffic(11, 2000))
    assert (outcome.exits == -1).all()
    assert [plan.ramps for _, plan in outcome.plans] == [()]


def test_paused_adaptation_keeps_the_plan():
    outcome = run(a_spec(paused=True), CATALOG, *traffic(12, 2000))
    assert len(outcome.plans) == 1


def test_a_useless_model_of_confidence_opens_nothing():
    err, top1, final = traffic(13, 4000, hard=0.9)
    scores = np.random.default_rng(13).permutation(err.ravel()).reshape(err.shape)  # tell nothing about the answer
    outcome = run(a_spec(), CATALOG, scores, top1, final)
    assert outcome.wrong.sum() <= 0.01 * 4000 + 2
    assert outcome.worst_loss() <= 0.021


def test_an_alarm_without_enough_feedback_closes_the_exits():
    plan = Plan.of(7, [1], [0.4], CATALOG.digest)
    decision, _ = policy.decide(FeedbackWindow(1000, RAMPS), plan, CATALOG, Budget(), Memory(), alarm=True)
    assert decision.reason is Reason.LOSS_ABOVE_BUDGET
    assert decision.plan is not None
    assert not decision.plan.exits_open


def test_without_enough_feedback_nothing_changes():
    plan = policy.first_plan(CATALOG, Budget())
    decision, _ = policy.decide(FeedbackWindow(1000, RAMPS), plan, CATALOG, Budget(), Memory())
    assert (decision.reason, decision.plan) == (Reason.NOT_ENOUGH_FEEDBACK, None)
    assert "0 records of the active ramps, 511 needed" in decision.message


def test_a_budget_that_the_window_is_too_small_to_prove_is_told_with_what_to_do():
    budget, window = Budget(0.0005), FeedbackWindow(1000, RAMPS)
    decision, _ = policy.decide(window, policy.first_plan(CATALOG, budget), CATALOG, budget, Memory())
    assert "the window holds 1000" in decision.message
    assert "raise spec.adaptation.window" in decision.message


def a_batch_without_ramps(n):
    return FeedbackBatch(
        model="default/m/1",
        worker="w",
        epoch=1,
        seq=0,
        revision=1,
        padded_size=n,
        ramps=(),
        errors=np.zeros((n, 0), np.float32),
        labels=np.zeros((n, 0), np.int32),
        final_labels=np.zeros(n, np.int32),
        exits=np.full(n, FINAL, np.int32),
        catalog=CATALOG.digest,
    )


@pytest.mark.parametrize("records", [0, 700])
@pytest.mark.parametrize("alarm", [False, True])
def test_a_plan_without_ramps_says_why_it_has_none_however_much_traffic_there_was(records, alarm):
    window, tight = FeedbackWindow(1000, RAMPS), Budget(ramp_overhead=0.001)
    if records:
        window.add(a_batch_without_ramps(records))
    decision, memory = policy.decide(window, Plan(1), CATALOG, tight, Memory(), alarm=alarm)
    assert (decision.reason, decision.plan, decision.observed.samples) == (Reason.UNCHANGED, None, records)
    assert decision.message == (
        "no ramp fits the ramp overhead of 0.10%, the cheapest costs 0.90% of a pass: the plain model; "
        "raise spec.budget.rampOverhead"
    )
    assert memory.tuned_at == records


def test_a_catalog_whose_ramps_are_all_too_slow_says_so_instead_of_asking_for_overhead():
    slow = replace(CATALOG, overhead_ms=np.full_like(CATALOG.overhead_ms, 1e3))
    assert policy.none_fits(slow, Budget()).startswith(f"none of {RAMPS} ramps answers sooner than the whole pass")


def test_the_first_plan_fills_the_ramp_budget_with_closed_ramps():
    plan = policy.first_plan(CATALOG, Budget(ramp_overhead=0.03))
    assert len(plan.active) == 3
    assert not plan.exits_open


@pytest.mark.parametrize(("loss", "confidence", "least"), [(0.01, 0.95, 511), (0.05, 0.95, 128), (0.01, 0.99, 786)])
def test_tuning_starts_where_a_certificate_is_possible(loss, confidence, least):
    assert policy.least_records(Budget(loss, 0.02, confidence)) == pytest.approx(least, abs=2)
