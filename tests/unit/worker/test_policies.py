"""When a batch is due and how large it is, by each policy."""

import math
from dataclasses import dataclass

import pytest

from apparate.contract.resource import Serving
from apparate_worker.passtimes import PassTimes
from apparate_worker.policies import PASS_SHARE, Aimd, Deadline, SizeAge, policy_of


@dataclass
class Waits:
    arrived: float = 0.0
    deadline: float = math.inf


def times(most=8, row_s=1.0):
    return PassTimes([row_s * n for n in range(most + 1)])


def test_by_size_and_age_a_batch_is_due_when_its_oldest_has_waited():
    assert SizeAge(times(), 8, 2.0).due(Waits(arrived=1.0), 1, now=1.5) == 3.0


def test_who_has_a_deadline_waits_for_company_no_longer_than_that_allows():
    assert SizeAge(times(row_s=0.1), 8, 2.0).due(Waits(deadline=1.0), 1, now=0.0) == pytest.approx(0.8)


def test_without_a_delay_nothing_waits():
    assert not SizeAge(times(), 8, 0.0).waits


def full_passes(policy, row_s, passes):
    for _ in range(passes):
        policy.took(policy.most, policy.most * row_s)


def test_the_largest_batch_grows_by_one_while_passes_keep_to_the_objective():
    policy = Aimd(times(), 8, 0.0, slo_s=100.0)
    assert policy.most == 1
    full_passes(policy, 1.0, 3)
    assert policy.most == 4
    full_passes(policy, 1.0, 30)
    assert policy.most == 8


def test_the_largest_batch_settles_below_what_the_objective_allows():
    policy, row_s, found = Aimd(times(64), 64, 0.0, slo_s=20.0), 1.0, []
    for _ in range(200):
        full_passes(policy, row_s, 1)
        found.append(policy.most)
    assert max(found[50:]) <= 20.0 * PASS_SHARE + 1
    assert min(found[50:]) >= 0.8 * 20.0 * PASS_SHARE


def test_a_small_pass_within_the_objective_says_nothing_about_a_larger_one():
    policy = Aimd(times(), 8, 0.0, slo_s=100.0)
    full_passes(policy, 1.0, 3)
    policy.took(2, 2.0)
    assert policy.most == 4


def test_a_batch_is_never_smaller_than_one_row():
    policy = Aimd(times(), 8, 0.0, slo_s=0.001)
    full_passes(policy, 1.0, 50)
    assert policy.most == 1


def test_by_deadlines_the_profile_says_at_once_how_large_a_batch_may_be():
    assert Deadline(times(), 8, 0.0, slo_s=4.0 / PASS_SHARE).most == 4
    assert Deadline(times(), 8, 0.0, slo_s=0.1).most == 1
    assert Deadline(times(), 8, 0.0).most == 8


def test_by_deadlines_the_largest_batch_follows_a_device_that_becomes_slow_and_fast_again():
    policy = Deadline(times(), 8, 0.0, slo_s=9.0 / PASS_SHARE)
    full_passes(policy, 4.0, 100)
    assert policy.most == 2
    full_passes(policy, 0.5, 300)
    assert policy.most == 8


def test_another_objective_is_kept_from_then_on():
    policy = Deadline(times(), 8, 0.0, slo_s=8.0 / PASS_SHARE)
    policy.want(2.5 / PASS_SHARE)
    full_passes(policy, 1.0, 20)
    assert policy.most == 2


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({}, SizeAge),
        ({"batching": {"policy": "aimd"}, "slo": {"latencyMs": 50}}, Aimd),
        ({"batching": {"policy": "deadline"}}, Deadline),
    ],
    ids=str,
)
def test_the_spec_names_the_policy(asked, kind):
    assert type(policy_of(Serving.model_validate(asked), times())) is kind
