"""The guard closes exits before the next pass, and a newer plan answers its alarm."""

import numpy as np

from apparate.adaptation.guard import Guard, GuardState
from apparate.plan import Plan
from apparate_worker.engine import Schedule
from apparate_worker.guard import WorkerGuard

OPEN = Plan.of(1, [0], [0.5])


def a_guard(budget=0.01, earned=1000):
    guard, schedule = WorkerGuard(budget), Schedule(OPEN, 2)
    guard.admit(schedule)
    guard.observe([False] * earned)
    return guard, schedule


def test_exits_are_open_while_the_budget_is_kept():
    guard, schedule = a_guard()
    assert guard.admit(schedule) is schedule


def test_a_worker_that_has_earned_no_credit_yet_reports_and_lets_nobody_go():
    guard, schedule = a_guard(earned=0)
    guard.observe([False])
    admitted = guard.admit(schedule)
    assert (admitted.active, admitted.plan.exits_open, guard.guarded) == ((0,), False, False)


def test_wrong_exits_raise_the_alarm_and_close_every_ramp_from_the_next_pass_on():
    guard, schedule = a_guard()
    guard.observe([True] * 8)
    admitted = guard.admit(schedule)
    assert (guard.state, guard.alarms, guard.guarded) == (GuardState.LOSS_ABOVE_BUDGET, 1, True)
    assert (admitted.plan.revision, admitted.active, admitted.plan.exits_open) == (1, (0,), False)


def test_the_alarm_stays_until_a_newer_plan():
    guard, schedule = a_guard()
    guard.observe([True] * 8)
    guard.observe([False] * 2000)
    assert not guard.admit(schedule).plan.exits_open
    newer = Schedule(Plan.of(2, [0], [0.2]), 2)
    assert guard.admit(newer) is newer


def test_a_plan_whose_exits_are_closed_anyway_is_not_guarded():
    guard, _ = a_guard()
    guard.observe([True] * 8)
    guard.admit(Schedule(Plan.of(2, [0], [0.0]), 2))
    assert not guard.guarded


def test_answers_of_the_plain_model_earn_the_budget_that_opens_the_first_plan():
    guard, schedule = WorkerGuard(0.01), Schedule(OPEN, 2)
    guard.admit(Schedule(Plan(0), 2))
    guard.served_plain(500)
    assert guard.admit(schedule) is schedule


def test_right_answers_that_wait_to_be_booked_come_before_the_wrong_one_that_follows():
    guard, _ = a_guard(earned=0)
    for _ in range(31):
        guard.observe([False])
    one, all_at_once = guard.observe([True]), Guard(0.01).observe(np.array([False] * 31 + [True]))
    assert one is all_at_once
