"""The guard: what it promises on any traffic, and how soon it notices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apparate.adaptation.guard import WINDOW_ANSWERS, BudgetLedger, BudgetWindow, Guard, GuardState, LossMonitor


def serve(guard: Guard, would_be_wrong: np.ndarray, pass_size: int) -> np.ndarray:
    """Which answers of a stream disagree when exits follow the guard."""
    wrong = np.zeros(len(would_be_wrong), bool)
    for start in range(0, len(wrong), pass_size):
        rows = slice(start, start + pass_size)
        if guard.state is GuardState.OPEN:
            wrong[rows] = would_be_wrong[rows]
        guard.observe(wrong[rows])
        guard.new_plan()  # a controller that always answers with exits open: the ledger alone must hold
    return wrong


@given(
    seed=st.integers(0, 2**32 - 1),
    budget=st.sampled_from([0.005, 0.01, 0.05, 0.2]),
    pass_size=st.integers(1, 16),
    burst=st.floats(0.0, 1.0),
)
def test_on_any_traffic_the_loss_stays_within_the_budget_and_one_pass(seed, budget, pass_size, burst):
    rng = np.random.default_rng(seed)
    regimes = np.repeat(rng.random(40) < burst, 50)
    would_be_wrong = rng.random(len(regimes)) < np.where(regimes, 0.6, 0.01)
    wrong = serve(Guard(budget), would_be_wrong, pass_size)
    spent = np.cumsum(wrong)
    assert (spent <= budget * np.arange(1, len(wrong) + 1) + pass_size).all()


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3]), st.sampled_from([0.01, 0.05]), st.integers(1, 8))
@settings(max_examples=50, deadline=None)
def test_of_any_thousand_answers_in_a_row_of_all_workers_no_more_than_the_budget_disagree(
    seed, workers, budget, at_once
):
    rng = np.random.default_rng(seed)
    regimes = np.repeat(rng.random(60) < 0.1, 100)  # long quiet, which saves up credit, and bursts
    released = []
    for worker in range(workers):
        would_be_wrong = rng.random(len(regimes)) < np.where(np.roll(regimes, 50 * worker), 0.3, 0.001)
        released.append(serve(Guard(budget, workers), would_be_wrong, at_once))
    wrong = np.stack(released, 1).ravel()  # each answers in turn
    in_window = np.convolve(wrong, np.ones(WINDOW_ANSWERS), "valid")
    assert in_window.max() <= budget * WINDOW_ANSWERS + workers * (at_once + 1)


def test_a_workers_share_of_the_window_follows_how_many_there_are_and_stays_usable():
    window = BudgetWindow(0.01, 2)
    assert window.answers == 500
    window.observe(np.ones(4, bool))
    assert not window.spent
    window.share(4)
    assert window.answers == 300  # 3 disagreements, not 2
    assert window.observe(np.zeros(1, bool))  # what was seen stays seen
    window.share(1)
    assert not window.observe(np.zeros(1, bool))
    with pytest.raises(ValueError, match="workers is 0"):
        window.share(0)


def test_exits_are_closed_before_anything_is_earned():
    assert Guard(0.01).state is GuardState.BUDGET_SPENT


def test_credit_is_earned_by_answers_and_capped():
    ledger = BudgetLedger(0.01)
    ledger.observe(np.zeros(5000, bool))
    assert ledger.credit == pytest.approx(10.0)


def test_a_spent_budget_opens_again_with_one_disagreement_to_spare():
    ledger = BudgetLedger(0.01)
    ledger.observe(np.zeros(1000, bool))
    ledger.observe(np.ones(10, bool))
    reopened = next(n for n in range(1, 1000) if not ledger.observe(np.zeros(1, bool)))
    assert 150 <= reopened <= 210


def test_the_alarm_notices_a_loss_of_a_fifth_within_a_few_dozen_answers():
    rng = np.random.default_rng(7)
    delays = []
    for _ in range(40):
        monitor, answers = LossMonitor(0.01), 0
        while not monitor.observe(rng.random(1) < 0.2):
            answers += 1
        delays.append(answers)
    assert np.median(delays) <= 30


def alarms(seed: int, loss: float, *, batches: int, size: int) -> int:
    """How often it rings in so many batches of answers that are wrong independently of each other."""
    rng, monitor, found = np.random.default_rng(seed), LossMonitor(0.01), 0
    for _ in range(batches):
        if monitor.observe(rng.random(size) < loss):
            found += 1
            monitor.reset()
    return found


def test_the_alarm_is_quiet_below_the_budget():
    assert alarms(8, 0.005, batches=100, size=1000) <= 2


def test_at_a_loss_of_the_whole_budget_false_alarms_are_more_than_a_thousand_answers_apart():
    assert 1 <= alarms(9, 0.01, batches=4000, size=50) <= 200


def test_a_new_plan_ends_the_alarm_and_not_the_debt():
    guard = Guard(0.01)
    guard.observe(np.zeros(1000, bool))
    guard.observe(np.ones(20, bool))
    assert guard.state is GuardState.LOSS_ABOVE_BUDGET
    guard.new_plan()
    assert guard.state is GuardState.BUDGET_SPENT


@pytest.mark.parametrize("budget", [0.5, 0.1, 0.3])
def test_a_large_budget_keeps_every_wealth_positive(budget):
    monitor = LossMonitor(budget)
    monitor.observe(np.zeros(100, bool))
    assert not monitor.alarm


@pytest.mark.parametrize("rule", [LossMonitor, BudgetLedger])
def test_a_budget_outside_its_range_is_refused(rule):
    with pytest.raises(ValueError, match=r"accuracy budget is 1\.5"):
        rule(1.5)


@given(st.lists(st.booleans(), max_size=200), st.sampled_from([0.01, 0.05, 0.3]), st.integers(1, 20))
def test_answers_may_come_one_by_one_or_together(wrong, budget, at_once):
    together, singly = Guard(budget), Guard(budget)
    for start in range(0, len(wrong), at_once):
        together.observe(np.array(wrong[start : start + at_once], bool))
    for one in wrong:
        singly.ledger.observe(np.array([one]))
        singly.window.observe(np.array([one]))
        singly.monitor.observe(np.array([one]))
    assert together.ledger.credit == pytest.approx(singly.ledger.credit)
    assert together.monitor._wealth == pytest.approx(singly.monitor._wealth)
    assert together.monitor.alarm == singly.monitor.alarm
