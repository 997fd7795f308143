"""A pass stops only where its plan has a ramp, and the model's own answer never changes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apparate.feedback import FINAL
from apparate.plan import Plan
from apparate_worker.engine import CpuLink, Engine, Schedule, as_tensor, link_to, warm_up
from support.models import Chain, a_prepared_model, items

PLAN = Plan.of(1, [1], [0.5])


def outputs(plan, *, shadow=False, x=None, prepared=None):
    prepared = prepared or a_prepared_model()
    engine = Engine(prepared.model, prepared.heads, CpuLink())
    with torch.inference_mode():
        schedule = Schedule(plan, len(prepared.heads))
        found = list(engine.run(engine.start({"x": items(4) if x is None else x}, schedule, shadow=shadow)))
    return prepared, found


@given(st.sets(st.integers(0, 2)), st.booleans())
def test_every_plan_ends_in_the_plain_models_answer_bit_for_bit(active, shadow):
    prepared, found = outputs(Plan.of(1, active, [0.5] * len(active)), shadow=shadow)
    assert found[-1].step.ramp == FINAL
    np.testing.assert_array_equal(found[-1].values, prepared.model({"x": torch.from_numpy(items(4))}).numpy())


def test_without_active_ramps_the_pass_is_one_loop():
    assert [(s.segments, s.ramp) for s in Schedule(Plan(0), 3).steps] == [(range(4), FINAL)]


def test_segments_between_active_ramps_run_in_one_loop():
    steps = Schedule(Plan.of(1, [1], [0.5]), 3).steps
    assert [(s.segments, s.ramp) for s in steps] == [(range(2), 1), (range(2, 4), FINAL)]


def test_active_ramps_speak_in_order_with_their_heads_scores():
    prepared, found = outputs(Plan.of(1, [0, 2], [0.5, 0.5]))
    assert [one.step.ramp for one in found] == [0, 2, FINAL]
    with torch.inference_mode():
        state = prepared.model.advance(0, prepared.model.start({"x": torch.from_numpy(items(4))}))
        wanted = prepared.heads[0].logits(prepared.heads[0].pool(state.value, None))
    np.testing.assert_array_equal(found[0].values, wanted.numpy())


def test_a_pass_with_shadows_keeps_the_pooled_vector_of_every_inactive_ramp():
    _, found = outputs(Plan.of(1, [1], [0.5]), shadow=True)
    assert [(one.step.ramp, one.step.active) for one in found[:3]] == [(0, False), (1, True), (2, False)]
    assert found[0].values.shape == (4, 16)


def test_an_output_is_handed_out_before_the_next_segment_runs():
    ran = []
    prepared = a_prepared_model(hook=lambda k, value: ran.append(k))
    engine = Engine(prepared.model, prepared.heads, CpuLink())
    first = next(engine.run(engine.start({"x": items(1)}, Schedule(Plan.of(1, [0], [0.5]), 3))))
    assert (first.step.ramp, ran) == (0, [0])


class Later:
    """A link whose copies arrive only when asked for, or after `polls` looks: what a GPU does."""

    immediate = False

    def __init__(self, polls):
        self.polls = polls

    def upload(self, arrays):
        return {name: as_tensor(values) for name, values in arrays.items()}

    def fetch(self, tensor):
        return _Slow(tensor, self.polls)


class _Slow:
    def __init__(self, tensor, polls):
        self.values, self.polls = tensor.numpy().copy(), polls

    def ready(self):
        self.polls -= 1
        return self.polls < 0

    def take(self):
        return self.values


@pytest.mark.parametrize("polls", [0, 1, 2, 99])
def test_a_slow_link_changes_when_outputs_come_but_not_what_or_in_which_order(polls):
    prepared = a_prepared_model()
    schedule = Schedule(Plan.of(1, [0, 1, 2], [0.5] * 3), 3)
    with torch.inference_mode():
        engines = [Engine(prepared.model, prepared.heads, link) for link in (CpuLink(), Later(polls))]
        at_once, late = (list(engine.run(engine.start({"x": items(4)}, schedule))) for engine in engines)
    assert [one.step for one in late] == [one.step for one in at_once]
    for one, other in zip(late, at_once, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_the_launches_of_a_pass_never_wait_for_a_ramp():
    ran = []
    prepared = a_prepared_model(hook=lambda k, value: ran.append(k))
    engine = Engine(prepared.model, prepared.heads, Later(99))
    next(engine.run(engine.start({"x": items(1)}, Schedule(Plan.of(1, [0], [0.5]), 3))))
    assert ran == [0, 1, 2, 3]


def journeys(x, plan=PLAN, shadow=False):
    prepared = a_prepared_model()
    engine = Engine(prepared.model, prepared.heads, CpuLink())
    return engine, engine.start({"x": x}, Schedule(plan, 3), shadow=shadow)


def test_with_pauses_a_journey_can_be_left_between_any_two_segments_and_taken_up_again():
    engine, journey = journeys(items(4))
    with torch.inference_mode():
        whole = list(engine.run(engine.start({"x": items(4)}, journey.schedule)))
        found = []
        while journey.at < 4:
            found.append(next(engine.run(journey, pauses=True)))
    spoken = [one for one in found if one is not None]
    assert len(found) > len(spoken)
    assert [one.step for one in spoken] == [one.step for one in whole]
    for one, other in zip(spoken, whole, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


@given(st.lists(st.integers(0, 3), unique=True, min_size=1), st.integers(1, 3))
def test_rows_that_part_and_join_again_get_the_same_answers(rows, at):
    engine, journey = journeys(items(4))
    with torch.inference_mode():
        *_, whole = engine.run(engine.start({"x": items(4)}, journey.schedule))
        going = engine.run(journey, pauses=True)
        while journey.at < at:
            next(going)
        others = [row for row in range(4) if row not in rows]
        parts = [engine.part(journey, chosen) for chosen in (rows, others) if chosen]
        assert len({engine.place(part) for part in parts}) == 1
        *_, joined = engine.run(engine.join(parts))
    np.testing.assert_allclose(joined.values, whole.values[[*rows, *others]], rtol=1e-5, atol=1e-6)


def test_journeys_under_different_plans_or_at_different_places_do_not_join():
    engine, journey = journeys(items(1))
    other = engine.start({"x": items(1)}, Schedule(PLAN, 3))
    assert engine.place(other) != engine.place(journey)
    further = engine.start({"x": items(1)}, journey.schedule)
    assert engine.place(further) == engine.place(journey)
    next(engine.run(further))
    assert engine.place(further) != engine.place(journey)


def test_bfloat16_arrays_become_bfloat16_tensors():
    import ml_dtypes

    assert as_tensor(np.array([1.5, -2], ml_dtypes.bfloat16)).tolist() == [1.5, -2.0]


def test_the_cpu_needs_no_side_stream():
    assert isinstance(link_to(torch.device("cpu")), CpuLink)


def test_warming_up_runs_every_segment():
    ran = set()
    chain = Chain(2, 3, lambda k, value: ran.add(k))
    prepared = a_prepared_model(ramps=2)
    warm_up(Engine(chain, prepared.heads, CpuLink()), {"x": items(1)}, [Schedule(Plan(0), 2)])
    assert ran == {0, 1, 2}
