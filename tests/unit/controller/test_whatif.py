"""What other budgets and earlier plans would do, asked of a session's window."""

from __future__ import annotations

import numpy as np
import pytest

from apparate.contract.resource import PlanStatus, Spec
from apparate.feedback import FINAL, FeedbackBatch
from apparate.plan import Plan
from apparate_controller import whatif
from apparate_controller.session import ModelSession
from apparate_controller.views import PlanReplay
from support.control import CATALOG

SPEC = Spec.model_validate({"model": {"source": "x", "entrypoint": "a:b"}, "bootstrap": {"data": "x"}})


@pytest.fixture(scope="module")
def session() -> ModelSession:
    """One whose ramps are the surer the later they are; wrong where they are unsure."""
    made = ModelSession(CATALOG, SPEC)
    made.start()
    draw = np.random.default_rng(7)
    hard = draw.random(4096)
    for seq, part in enumerate(np.split(hard, 64)):
        errors = np.stack([part**power for power in (1, 2, 3)], axis=1).astype(np.float32)
        labels = (draw.random(errors.shape) < errors**2 / 4).astype(np.int32)
        made.feed(feedback_of(made, errors, seq, labels), more=True)
    return made


def feedback_of(session: ModelSession, errors: np.ndarray, seq: int, labels: np.ndarray | None = None) -> FeedbackBatch:
    """Feedback of the session's active ramps, or of all where it has several; nobody left early."""
    return FeedbackBatch(
        model="default/m/1",
        worker="w",
        epoch=1,
        seq=seq,
        revision=session.plan.revision,
        padded_size=64,
        ramps=(0, 1, 2) if errors.shape[1] == 3 else session.plan.active,
        errors=errors,
        labels=np.zeros(errors.shape, np.int32) if labels is None else labels,
        final_labels=np.zeros(len(errors), np.int32),
        exits=np.full(len(errors), FINAL, np.int32),
        catalog=CATALOG.digest,
    )


def ask(session: ModelSession, *budgets: float, **more: float) -> whatif.WhatIf:
    question = whatif.Question(budgets, **more)
    return whatif.answer(whatif.known(session, CATALOG, SPEC, question), question)


def test_a_larger_budget_saves_no_less_and_each_stays_within_its_own(session: ModelSession) -> None:
    found = ask(session, 0.005, 0.01, 0.02, 0.05)
    assert found.records == 4096
    savings = [one.saving for one in found.answers]
    assert savings == sorted(savings)
    assert 0 < savings[0] < savings[-1]
    assert all(one.certified and one.loss_upper <= one.accuracy_loss for one in found.answers)


def test_the_plan_in_force_is_told_beside_it_and_stays(session: ModelSession) -> None:
    before = session.plan
    found = ask(session, 0.02)
    assert (found.loss, found.exit_rate) == (0.0, 0.0)  # all ramps closed yet
    assert found.saving < 0  # and paid for
    assert session.plan == before


def test_ramps_are_chosen_anew_for_another_overhead(session: ModelSession) -> None:
    (tight,) = ask(session, 0.02, ramp_overhead=0.003).answers
    (wide,) = ask(session, 0.02, ramp_overhead=0.5).answers
    assert len(tight.ramps) == 1  # each costs a four-hundredth of a pass
    assert wide.saving >= tight.saving


def test_without_a_record_there_is_no_answer() -> None:
    empty = ModelSession(CATALOG, SPEC)
    empty.start()
    found = ask(empty, 0.01)
    assert (found.records, found.loss, found.answers) == (0, None, [])
    assert found.problem == "no feedback of these ramps yet: send requests first"


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"budget": {"rampOverhead": 0.001}}, ("no ramp is active", "0.10%", "raise spec.budget.rampOverhead")),
        ({"adaptation": {"policy": "never"}}, ("no ramp is active", "spec.adaptation.policy is never")),
    ],
)
@pytest.mark.parametrize("more", [{}, {"ramp_overhead": 0.2}])
def test_of_a_plan_without_ramps_it_says_that_nothing_is_known_and_what_to_do(change, wanted, more) -> None:
    spec = Spec.model_validate(SPEC.model_dump(by_alias=True) | change)
    plain = ModelSession(CATALOG, spec)
    plain.start()
    plain.feed(feedback_of(plain, np.zeros((64, 0), np.float32), 0))
    question = whatif.Question((0.01,), **more)
    found = whatif.answer(whatif.known(plain, CATALOG, spec, question), question)
    assert (found.records, found.answers) == (0, [])
    assert [text for text in wanted if text not in found.problem] == []


def test_an_overhead_that_no_ramp_fits_is_told(session: ModelSession) -> None:
    found = ask(session, 0.02, ramp_overhead=0.001)
    assert found.answers == []
    assert "no ramp fits the ramp overhead of 0.10%, the cheapest costs" in found.problem


def test_without_shadows_no_ramps_are_chosen_anew() -> None:
    one = ModelSession(CATALOG, SPEC, Plan.of(1, [1], [0.0], CATALOG.digest))
    one.feed(feedback_of(one, np.full((64, 1), 0.5, np.float32), 0))
    found = ask(one, 0.02, ramp_overhead=0.2)
    assert (found.answers, "spec.adaptation.shadowShare" in found.problem) == ([], True)


def past(session: ModelSession, *plans: Plan) -> dict[int, PlanReplay]:
    known = whatif.replayable(session, CATALOG, map(PlanStatus.of, plans))
    return {one.revision: one for one in whatif.replayed(known, CATALOG)}


def test_plans_of_the_past_are_judged_by_todays_window_not_by_what_was_seen_then(session: ModelSession) -> None:
    here = CATALOG.digest
    closed, careful, bold = (Plan.of(r, [1, 2], [t, t], here) for r, t in ((1, 0.0), (2, 0.05), (3, 0.9)))
    found = past(session, bold, careful, closed)
    assert list(found) == [3, 2, 1]
    assert (found[1].loss, found[1].exit_rate) == (0.0, 0.0)
    assert found[1].saving < 0 < found[2].saving < found[3].saving
    assert found[2].loss < 0.01 < found[3].loss
    left = session.window.over([1, 2]).errors.min(axis=1) < np.float32(0.9)
    assert found[3].exit_rate == pytest.approx(left.mean())


def test_the_plain_model_loses_and_saves_nothing(session: ModelSession) -> None:
    plain = past(session, Plan(4, (), CATALOG.digest))[4]
    assert (plain.records, plain.loss, plain.saving, plain.exit_rate) == (4096, 0.0, 0.0, 0.0)


def test_plans_of_another_catalog_or_without_a_record_of_their_ramps_are_left_out() -> None:
    one = ModelSession(CATALOG, SPEC, Plan.of(1, [1], [0.0], CATALOG.digest))
    one.feed(feedback_of(one, np.full((64, 1), 0.5, np.float32), 0))
    others = (Plan.of(2, [1], [0.5], "another"), Plan.of(3, [0], [0.5], CATALOG.digest))
    beyond = Plan.of(4, [9], [0.5], CATALOG.digest)
    assert list(past(one, one.plan, *others, beyond)) == [1]
