"""Policies under bursts, on a virtual clock: who answers more in time, and who gives way first."""

from statistics import mean

import pytest

from support.queue_simulation import POLICIES, Device, Load, simulate

SEEDS = range(3)
SLOPED = Device(base_ms=1.0, row_ms=1.0)  # a CPU: each row costs
FLAT = Device(base_ms=6.0, row_ms=0.3)  # a GPU: the pass costs


def missed(policy, load, device, **options):
    """Mean share without an answer in time, of the high class, the low one, and all."""
    found = [simulate(policy, load, device, seed=seed, **options) for seed in SEEDS]
    return tuple(mean(getattr(one, name).missed for one in found) for name in ("high", "low", "all"))


@pytest.mark.parametrize("device", [SLOPED, FLAT], ids=["cpu", "gpu"])
@pytest.mark.parametrize("policy", POLICIES)
def test_below_saturation_nearly_all_are_in_time(policy, device):
    assert missed(policy, Load(shares=(0.7,), seconds=5), device)[2] < 0.01


@pytest.mark.parametrize("device", [SLOPED, FLAT], ids=["cpu", "gpu"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("times", [2, 5])
def test_under_overload_the_device_does_little_that_is_of_no_use(policy, device, times):
    lost = missed(policy, Load(shares=(float(times),), seconds=5), device)[2]
    assert 1 - 1 / times - 0.03 < lost < 1 - 0.9 / times  # of what it could answer in time, nine of ten are


def test_where_clients_wait_on_nearly_all_answers_come_late_and_deadlines_are_what_helps():
    load = Load(shares=(2.0,), seconds=5)
    assert missed("sizeAge", load, SLOPED, leave=False)[2] > 0.9
    assert missed("deadline", load, SLOPED, leave=False)[2] < 0.56


@pytest.mark.parametrize("policy", POLICIES)
def test_the_low_class_loses_first_and_does_not_starve(policy):
    high, low, _ = missed(policy, Load(shares=(1.2,), low=0.4, seconds=10), SLOPED)
    assert high < 0.02  # alone it would be three quarters of what can be served
    assert 0.2 < low < 0.99


@pytest.mark.parametrize("policy", ["sizeAge", "deadline"])
def test_a_few_of_the_low_class_are_answered_while_the_high_one_is_far_above_what_can_be_served(policy):
    found = simulate(policy, Load(shares=(4.0,), seconds=5), SLOPED)
    assert found.low.in_time > 50


@pytest.mark.parametrize("profile_off", [1 / 3, 3.0], ids=["too fast", "too slow"])
def test_deadlines_are_kept_although_the_profile_is_far_off(profile_off):
    load = Load(shares=(2.0,), seconds=5)
    wrong = missed("deadline", load, Device(profile_off=profile_off))[2]
    assert wrong < missed("deadline", load, Device())[2] + 0.02


def test_by_deadlines_few_wait_in_vain():
    found = [simulate("deadline", Load(shares=(3.0,), seconds=5), SLOPED, seed=seed) for seed in SEEDS]
    assert mean((one.high.late + one.high.given_up) / one.high.asked for one in found) < 0.05


def test_aimd_finds_a_batch_that_the_objective_affords_where_the_largest_would_be_too_slow():
    load = Load(shares=(2.0,), seconds=5, slo_s=0.02)
    batches = simulate("aimd", load, SLOPED, max_batch=64).batches
    assert 8 < mean(batches[-100:]) <= 15
