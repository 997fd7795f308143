"""A guard whose budget changes while it serves."""

from apparate.adaptation.guard import GuardState
from apparate.plan import Plan
from apparate_worker.engine import Schedule
from apparate_worker.guard import WorkerGuard

OPEN = Schedule(Plan.of(1, [0], [0.5]), 2)
NEWER = Schedule(Plan.of(2, [0], [0.5]), 2)


def a_guard(budget=0.01, earned=1000):
    guard = WorkerGuard(budget)
    guard.admit(OPEN)
    guard.observe([False] * earned)
    return guard


def test_a_larger_budget_bears_what_the_smaller_one_does_not():
    outcomes = ([False] * 9 + [True]) * 40
    strict, loose = a_guard(), a_guard()
    loose.keep(0.2)
    for guard in (strict, loose):
        guard.admit(OPEN)
        guard.observe([False] * 1000)
        guard.observe(outcomes)
    assert (strict.guarded, loose.guarded) == (True, False)


def test_a_new_budget_starts_with_empty_books_so_exits_open_when_it_is_earned():
    guard = a_guard()
    guard.keep(0.05)
    assert not guard.admit(OPEN).plan.exits_open
    guard.observe([False] * 1000)
    assert guard.admit(OPEN).plan.exits_open


def test_the_same_budget_changes_nothing():
    guard = a_guard()
    guard.keep(0.01)
    assert guard.admit(OPEN) is OPEN


def test_a_new_budget_ends_no_alarm_and_comes_with_the_next_plan():
    guard = a_guard()
    guard.observe([True] * 8)
    guard.keep(0.5)
    assert not guard.admit(OPEN).plan.exits_open
    assert guard.state is GuardState.LOSS_ABOVE_BUDGET
    guard.admit(NEWER)
    assert not guard.guarded
