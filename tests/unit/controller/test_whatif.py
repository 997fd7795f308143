"""What other budgets would do, asked of a session's window."""

from __future__ import annotations

import numpy as np
import pytest

from apparate.contract.resource import Spec
from apparate.feedback import FINAL, FeedbackBatch
from apparate_controller import whatif
from apparate_controller.session import ModelSession
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
        made.feed(
            FeedbackBatch(
                model="default/m/1",
                worker="w",
                epoch=1,
                seq=seq,
                revision=made.plan.revision,
                padded_size=64,
                ramps=(0, 1, 2),
                errors=errors,
                labels=labels,
                final_labels=np.zeros(len(part), np.int32),
                exits=np.full(len(part), FINAL, np.int32),
                catalog=CATALOG.digest,
            ),
            more=True,
        )
    return made


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
