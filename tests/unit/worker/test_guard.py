"""The guard closes exits before the next pass, and a newer plan answers its alarm."""

import numpy as np

from apparate.adaptation.guard import GuardState
from apparate.plan import Plan
from apparate_worker.engine import Schedule
from apparate_worker.guard import WorkerGuard

OPEN = Plan.of(1, [0], [0.5])


def a_guard(budget=0.01, earned=1000):
    guard, schedule = WorkerGuard(budget, 2), Schedule(OPEN, 2)
    guard.admit(schedule)
    guard.observe(np.zeros(earned, bool))
    return guard, schedule


def test_exits_are_open_while_the_budget_is_kept():
    guard, schedule = a_guard()
    assert guard.admit(schedule) is schedule


def test_a_worker_that_has_earned_no_credit_yet_reports_and_lets_nobody_go():
    guard, schedule = a_guard(earned=0)
    guard.observe(np.zeros(1, bool))
    admitted = guard.admit(schedule)
    assert (admitted.active, admitted.plan.exits_open, guard.guarded) == ((0,), False, False)


def test_wrong_exits_raise_the_alarm_and_close_every_ramp_from_the_next_pass_on():
    guard, schedule = a_guard()
    guard.observe(np.ones(8, bool))
    admitted = guard.admit(schedule)
    assert (guard.state, guard.alarms, guard.guarded) == (GuardState.LOSS_ABOVE_BUDGET, 1, True)
    assert (admitted.plan.revision, admitted.active, admitted.plan.exits_open) == (1, (0,), False)


def test_the_alarm_stays_until_a_newer_plan():
    guard, schedule = a_guard()
    guard.observe(np.ones(8, bool))
    guard.observe(np.zeros(2000, bool))
    assert not guard.admit(schedule).plan.exits_open
    newer = Schedule(Plan.of(2, [0], [0.2]), 2)
    assert guard.admit(newer) is newer


def test_a_plan_whose_exits_are_closed_anyway_is_not_guarded():
    guard, _ = a_guard()
    guard.observe(np.ones(8, bool))
    guard.admit(Schedule(Plan.of(2, [0], [0.0]), 2))
    assert not guard.guarded
