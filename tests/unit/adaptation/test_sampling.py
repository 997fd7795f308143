"""The accuracy budget when most early answers are not checked: what is promised, and what is estimated."""

import math

import numpy as np
import pytest
from scipy.stats import binom

from apparate.adaptation.certified import certified
from apparate.adaptation.exits import exit_ramps, replay
from apparate.adaptation.guard import Guard, GuardState
from apparate.adaptation.policy import Budget, observe
from apparate.adaptation.sampling import cost, reserve, tuned_share
from apparate.feedback import FINAL, FeedbackBatch, FeedbackWindow
from apparate.plan import Plan
from support.method import even_catalog, noisy_records

SHARE, BATCH = 0.1, 8


def test_with_every_batch_checked_a_disagreement_is_one_and_nothing_is_held_back():
    assert (cost(1.0), reserve(1.0, 0.95), tuned_share(1.0)) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.99])
def test_one_that_is_found_is_booked_as_more_than_it_stands_for(share):
    assert cost(share) > 1 / share
    assert cost(share) * share * tuned_share(share) == pytest.approx(1.0)
    assert 0.75 < tuned_share(share) < 1.0


@pytest.mark.parametrize("share", [0.0, -0.1, math.nan])
def test_a_share_that_is_no_probability_is_refused(share):
    with pytest.raises(ValueError, match="share of checked batches"):
        cost(share)


@pytest.mark.parametrize("share", [0.03, 0.1, 0.4])
def test_no_more_disagreements_come_than_are_booked_and_held_back_with_the_confidence_asked_for(share):
    """At no time, over 3,000 disagreements; whatever comes between them changes nothing."""
    rng = np.random.default_rng(1)
    found = np.cumsum(rng.random((2000, 3000)) < share, axis=1)
    came = np.arange(1, 3001)
    exceeded = (came > cost(share) * found + reserve(share, 0.95)).any(axis=1).mean()
    assert 0.01 < exceeded <= binom.ppf(0.999, 2000, 0.05) / 2000
    on_average = (came > found / share).any(axis=1).mean()
    assert on_average > 0.9  # as many as are found on average would be no promise


def serve(guard, would_be_wrong, rng, exits=0.6):
    """Which answers of a stream disagree, and which batches were checked, when exits and checks follow the guard."""
    wrong, checked = np.zeros(len(would_be_wrong), bool), np.zeros(len(would_be_wrong) // BATCH, bool)
    for number in range(len(checked)):
        rows = slice(number * BATCH, (number + 1) * BATCH)
        share = guard.share if guard.state is GuardState.OPEN else 1.0
        checked[number] = rng.random() < share
        if guard.state is GuardState.OPEN:
            wrong[rows] = would_be_wrong[rows]
        if checked[number]:
            guard.observe(wrong[rows], share)
        else:
            guard.unchecked(BATCH)
        guard.new_plan()  # a controller that always answers with exits open: what is booked must do
    return wrong, checked


@pytest.mark.parametrize("traffic", ["steady", "worse for good", "in bursts"])
def test_all_answers_since_the_start_keep_the_budget_with_the_confidence_asked_for(traffic):
    """Of answers that disagree one by one. Each worker's draws are its own, the traffic is the same."""
    count, runs, exceeded, checked_late = 48_000, 40, 0, []
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        hard = {"steady": 0.006, "worse for good": np.where(np.arange(count) < 25_000, 0.004, 0.1)}.get(
            traffic, np.where(np.arange(count) // 500 % 12 == 11, 0.15, 0.003)
        )
        wrong, checked = serve(Guard(0.01, share=SHARE, confidence=0.95), rng.random(count) < hard, rng)
        exceeded += bool((np.cumsum(wrong) > 0.01 * np.arange(1, count + 1) + BATCH).any())
        checked_late.append(checked[-1000:].mean())
    assert exceeded <= binom.ppf(0.99, runs, 0.05)
    if traffic == "steady":
        assert np.median(checked_late) < 1.2 * SHARE  # it is not kept by checking everything


def test_every_batch_is_checked_until_the_reserve_is_earned_and_again_after_a_disagreement():
    guard = Guard(0.01, share=SHARE)
    assert guard.share == 1.0
    guard.observe(np.zeros(5000, bool))
    assert guard.share == 1.0
    guard.observe(np.zeros(20_000, bool))
    assert guard.share == SHARE
    guard.observe(np.arange(BATCH) == BATCH - 1, SHARE)
    assert (guard.share, guard.state) == (1.0, GuardState.OPEN)
    guard.observe(np.zeros(50, bool))
    assert guard.share == SHARE


def test_what_is_not_checked_says_nothing_to_the_alarm():
    guard, other = (Guard(0.01, share=SHARE) for _ in range(2))
    for one in (guard, other):
        one.observe(np.zeros(20_000, bool))
        one.observe(np.ones(2, bool))
    other.unchecked(10_000)
    assert guard.monitor._wealth == other.monitor._wealth


@pytest.mark.parametrize("loss", [0.05, 0.2, 1.0])
def test_a_jump_of_the_loss_is_noticed_about_one_over_the_share_later(loss):
    taken = []
    for seed in range(200):
        rng, guard = np.random.default_rng(seed), Guard(0.01, share=SHARE)
        guard.observe(np.zeros(20_000, bool))
        answers = 0
        while guard.state is GuardState.OPEN:
            share = guard.share
            if rng.random() < share:
                guard.observe(rng.random(BATCH) < loss, share)
            else:
                guard.unchecked(BATCH)
            answers += BATCH
        taken.append(answers)
    expected = {0.05: 1200, 0.2: 150, 1.0: 90}[loss]
    assert expected / 3 < np.median(taken) < expected * 3


# What is estimated from the batches that were drawn, on a population whose hard requests leave late or never.

POPULATION = noisy_records(99, 160_000, 2)
THRESHOLDS = (0.04, 0.04)
CATALOG = even_catalog(2)
LEFT = exit_ramps(POPULATION.errors, np.array(THRESHOLDS))
TRUE_LOSS = replay(POPULATION, THRESHOLDS, CATALOG, range(2)).loss
PLAN = Plan.of(1, range(2), THRESHOLDS)


def a_batch(rows, share=1.0):
    """Feedback of some of the population: the model's own label is 0."""
    labels = np.where(POPULATION.agree[rows], 0, 1).astype(np.int32)
    exits = np.where(LEFT[rows] == 2, FINAL, LEFT[rows]).astype(np.int32)
    n = len(rows)
    return FeedbackBatch(
        model="m", worker="w", epoch=1, seq=0, revision=1, padded_size=max(n, 1), ramps=(0, 1),
        errors=POPULATION.errors[rows], labels=labels, final_labels=np.zeros(n, np.int32), exits=exits, share=share,
    )  # fmt: skip


def estimate(seed, *, naive, answers=16_000, share_of=lambda number: SHARE):
    """The loss that a window of what workers report says; naive: rows that ended in unchecked batches are in it."""
    rng, window = np.random.default_rng(seed), FeedbackWindow(answers, 2)
    rows = rng.integers(0, len(POPULATION), answers)
    for number, start in enumerate(range(0, answers, BATCH)):
        batch, share = rows[start : start + BATCH], share_of(number)
        if rng.random() < share:
            window.add(a_batch(batch, 1.0 if naive else share))
        elif naive:
            window.add(a_batch(batch[LEFT[batch] == 2]))
    return observe(window, window.over([0, 1]), PLAN, CATALOG, Budget())


def test_stopping_batches_does_not_bias_the_loss_and_counting_those_who_ended_there_does():
    assert 0.3 < np.mean(LEFT != 2) < 0.9
    ours = [estimate(seed, naive=False).loss for seed in range(30)]
    naive = [estimate(seed, naive=True).loss for seed in range(10)]
    error = np.std(ours) / math.sqrt(len(ours))
    assert abs(np.mean(ours) - TRUE_LOSS) < 3 * error
    assert error < 0.1 * TRUE_LOSS
    assert np.mean(naive) < 0.5 * TRUE_LOSS


def test_a_probability_that_changes_with_the_traffic_does_not_bias_the_loss():
    """More batches are checked in the second half, in which requests are all of one kind that never leaves."""
    answers, rng = 16_000, np.random.default_rng(3)
    early, never = np.flatnonzero(LEFT != 2), np.flatnonzero(LEFT == 2)
    found = {True: [], False: []}
    for _ in range(20):
        for weighted in found:
            window = FeedbackWindow(answers, 2)
            for number in range(answers // BATCH):
                first = number < answers // BATCH // 2
                share = SHARE if first else 1.0
                if rng.random() < share:
                    window.add(a_batch(rng.choice(early if first else never, BATCH), share if weighted else 1.0))
            found[weighted].append(observe(window, window.over([0, 1]), PLAN, CATALOG, Budget()))
    truth = 0.5 * (1 - POPULATION.agree[early, LEFT[early]].mean())
    assert np.mean([one.loss for one in found[True]]) == pytest.approx(truth, rel=0.1)
    assert np.mean([one.exit_rate for one in found[True]]) == pytest.approx(0.5, abs=0.02)
    assert np.mean([one.loss for one in found[False]]) < 0.3 * truth
    assert all(one.loss_upper > one.loss for one in found[True])


def test_records_that_all_stand_for_as_many_are_as_good_as_records_that_stand_for_one():
    windows = FeedbackWindow(4000, 2), FeedbackWindow(4000, 2)
    for window, share in zip(windows, (1.0, 0.1), strict=True):
        window.add(a_batch(np.arange(4000), share))
    plain, sampled = (observe(window, window.over([0, 1]), PLAN, CATALOG, Budget()) for window in windows)
    assert sampled.loss == pytest.approx(plain.loss)
    assert sampled.loss_upper == pytest.approx(plain.loss_upper)
    assert sampled.saving == pytest.approx(plain.saving)


def test_the_certificate_keeps_its_promise_on_batches_drawn_with_a_probability_that_follows_the_guard():
    eps, runs, fresh = 0.02, 60, noisy_records(10_000_001, 100_000, 2)
    over, opened = 0, 0
    for seed in range(runs):
        rng, doubt = np.random.default_rng(seed), 0
        records = noisy_records(seed, 24_000, 2)
        left = exit_ramps(records.errors, np.array(THRESHOLDS))
        right = np.column_stack([records.agree, np.ones(len(records), bool)])[np.arange(len(records)), left]
        taken, weight = [], []
        for start in range(0, len(records), BATCH):
            share = 1.0 if doubt > 0 or start < 800 else SHARE
            if rng.random() < share:
                taken += range(start, start + BATCH)
                weight += [1 / share] * BATCH
                doubt = 16 if not right[start : start + BATCH].all() else doubt - BATCH
        drawn = records.take(taken)
        drawn = type(drawn)(drawn.errors, drawn.agree, drawn.batch, np.array(weight))
        found = certified(drawn, CATALOG, range(2), eps, 0.95)
        over += replay(fresh, found.thresholds, CATALOG, range(2)).loss > eps
        opened += any(found.thresholds)
    assert over <= binom.ppf(0.99, runs, 0.05)
    assert opened >= 0.9 * runs
