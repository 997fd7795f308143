"""Decision by decision: steps on a certified chain, back when the newest records contradict it and forward again; ramps
that are not worth their time.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from apparate.adaptation import policy
from apparate.adaptation.certified import certified, chain_wrong
from apparate.adaptation.easing import step, tune_eased
from apparate.adaptation.policy import Budget, Memory, Reason
from apparate.adaptation.thresholds import Method
from apparate.feedback import FINAL, FeedbackBatch, FeedbackWindow, Records
from apparate.plan import Plan
from support.method import even_catalog, noisy_records

RAMPS = 4
CATALOG = even_catalog(RAMPS)
ALL = tuple(range(RAMPS))
BUDGET = Budget()
BAD = 6  # too many of 64 and of 256 answers at 1 %, not of 1,024


def with_a_bad_stretch(records: Records, length: int) -> Records:
    """The same records, of the newest of which the first ramp is sure and wrong."""
    errors, agree = records.errors.copy(), records.agree.copy()
    errors[-length:, 0], agree[-length:, 0] = 0.0, False
    return Records(errors, agree, records.batch)


def feedback(records: Records, revision: int, released_wrong: int = 0) -> FeedbackBatch:
    n, exits = len(records), np.full(len(records), FINAL, np.int32)
    errors, labels = records.errors.copy(), (~records.agree).astype(np.int32)
    exits[:released_wrong], labels[:released_wrong, 0], errors[:released_wrong, 0] = 0, 1, 0.9
    return FeedbackBatch(
        model="default/m/1",
        worker="w",
        epoch=1,
        seq=0,
        revision=revision,
        padded_size=n,
        ramps=ALL,
        errors=errors,
        labels=labels,
        final_labels=np.zeros(n, np.int32),
        exits=exits,
        catalog=CATALOG.digest,
    )


def test_whatever_accepted_configuration_is_deployed_the_certificate_keeps_its_promise():
    """In no more than delta of all cases has any accepted step a true loss, over fresh records, above the budget."""
    eps, delta, populations = 0.01, 0.05, 60
    fresh = noisy_records(10_000_000, 40_000, RAMPS)
    over = 0
    for seed in range(populations):
        found = certified(noisy_records(seed, 2048, RAMPS), CATALOG, ALL, eps, 1 - delta)
        over += (chain_wrong(fresh, found.chain.thresholds[: found.step + 1]) > eps * len(fresh)).any()
    assert over <= binom.ppf(0.99, populations, delta)


def test_a_bad_stretch_holds_back_what_was_accepted_and_its_end_lets_it_go():
    records = noisy_records(3, 4096, RAMPS)
    tuned = tune_eased(records, CATALOG, ALL, max_loss=0.01, method=Method.CERTIFIED, confidence=0.95)
    bad = step(with_a_bad_stretch(records, 16), CATALOG, tuned, 0.01)
    assert bad.held_back
    assert step(records, CATALOG, bad, 0.01).step == tuned.step


def test_no_step_goes_beyond_what_was_accepted():
    records = noisy_records(3, 4096, RAMPS)
    tuned = tune_eased(records, CATALOG, ALL, max_loss=0.01, method=Method.CERTIFIED, confidence=0.95)
    flawless = Records(records.errors, np.ones_like(records.agree), records.batch)
    assert step(flawless, CATALOG, tuned, 0.01).step == tuned.tuned.step


def test_a_tuner_without_a_certificate_has_no_steps():
    found = tune_eased(
        noisy_records(1, 600, 2), even_catalog(2), (0, 1), max_loss=0.01, method=Method.SWEEP, confidence=0.95
    )
    assert (found.has_steps, found.held_back) == (False, False)


class Loop:
    """The policy over a window, decision by decision."""

    def __init__(self) -> None:
        self.window, self.plan, self.memory = FeedbackWindow(8192, RAMPS), Plan.of(1, ALL, [0.0] * RAMPS), Memory()

    def take(self, records: Records, released_wrong: int = 0) -> None:
        self.window.add(feedback(records, self.plan.revision, released_wrong))

    def decide(self, **how) -> policy.Decision:
        decision, self.memory = policy.decide(self.window, self.plan, CATALOG, BUDGET, self.memory, **how)
        if decision.plan is not None:
            self.plan = replace(decision.plan, revision=self.plan.revision + 1)
        return decision

    @property
    def step_due(self) -> bool:
        return policy.step_due(self.window, self.plan, self.memory, BUDGET)


def test_an_alarm_is_answered_by_a_step_back_and_its_end_by_a_step_forward_without_a_search(monkeypatch):
    loop = Loop()
    loop.take(noisy_records(5, 4096, RAMPS))
    loop.decide()
    bold = loop.plan.thresholds
    loop.take(with_a_bad_stretch(noisy_records(6, 100, RAMPS), BAD))
    monkeypatch.delattr("apparate.adaptation.policy.tune_eased")  # whoever searched now would fail
    answer = loop.decide(alarm=True)
    assert answer.reason is Reason.LOSS_ABOVE_BUDGET
    assert (loop.plan.thresholds <= bold).all()
    assert (loop.plan.thresholds < bold).any()
    assert not loop.step_due
    loop.take(with_no_loss(noisy_records(7, 300, RAMPS)))
    assert loop.step_due
    assert loop.decide().reason is Reason.THRESHOLDS_TUNED
    assert (loop.plan.thresholds == bold).all()
    assert not loop.step_due


@pytest.mark.parametrize(("released_wrong", "forward"), [(7, True), (8, False)])
def test_there_is_no_step_forward_while_what_the_guards_allow_in_a_thousand_answers_is_nearly_spent(
    released_wrong, forward
):
    loop = Loop()
    loop.take(noisy_records(5, 4096, RAMPS))
    loop.decide()
    loop.take(with_a_bad_stretch(noisy_records(6, 100, RAMPS), BAD))
    loop.decide(alarm=True)
    loop.take(with_no_loss(noisy_records(7, 100, RAMPS)), released_wrong)
    loop.take(with_no_loss(noisy_records(7, 300, RAMPS)))
    assert loop.step_due is forward


def test_an_alarm_is_never_answered_with_bolder_thresholds():
    loop = Loop()
    loop.take(noisy_records(5, 4096, RAMPS))
    loop.decide()
    loop.take(with_a_bad_stretch(noisy_records(6, 100, RAMPS), BAD))
    loop.decide(alarm=True)
    held_back = loop.plan.thresholds
    loop.take(with_no_loss(noisy_records(7, 300, RAMPS)))
    loop.decide(alarm=True)
    assert (loop.plan.thresholds <= held_back).all()


def with_no_loss(records: Records) -> Records:
    """The same records, on which every ramp is right."""
    return Records(records.errors, np.ones_like(records.agree), records.batch)


def test_a_plan_that_the_newest_records_contradict_takes_a_step_back():
    loop = Loop()
    loop.take(noisy_records(5, 4096, RAMPS))
    loop.decide()
    assert not loop.step_due
    loop.take(with_a_bad_stretch(noisy_records(6, 100, RAMPS), BAD))
    assert loop.step_due


def test_what_was_accepted_for_other_ramps_is_no_chain_for_these():
    loop = Loop()
    loop.take(noisy_records(5, 4096, RAMPS))
    loop.decide()
    tuned_at = loop.memory.tuned_at
    loop.take(noisy_records(6, 100, RAMPS))
    loop.plan = Plan.of(7, ALL[1:], loop.plan.thresholds[1:])
    loop.decide(alarm=True)
    assert loop.memory.eased is not None
    assert loop.memory.eased.active == ALL[1:]
    assert loop.memory.tuned_at > tuned_at


def test_a_ramp_that_lets_nobody_go_is_dropped_though_that_saves_less_than_a_point():
    loop = Loop()
    records = noisy_records(5, 4096, RAMPS)
    records.errors[:, 1] = 1.0
    loop.take(records)
    loop.decide()
    assert loop.plan.active == ALL
    decision = loop.decide(proposal=(0, 2, 3))
    assert decision.reason is Reason.RAMPS_ADJUSTED
    assert loop.plan.active == (0, 2, 3)


def test_a_ramp_that_is_worth_its_time_stays():
    loop = Loop()
    loop.take(noisy_records(5, 4096, RAMPS))
    loop.decide()
    loop.decide(proposal=ALL[:1])
    assert loop.plan.active == ALL
