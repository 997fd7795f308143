"""Ramps learn what the model says, and their scores mean what they claim."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from apparate_worker.model.cutting import Source
from apparate_worker.model.errors import InvalidBootstrap
from apparate_worker.model.ramps import RampShape
from apparate_worker.model.segments import compile_source
from apparate_worker.prepare.bootstrap import BootstrapData
from apparate_worker.prepare.features import Features, candidates, gather, records_that_fit
from apparate_worker.prepare.training import FOLDS, fit_temperature, leaves_at, split, train
from support.nets import CPU, IMAGE, Residual, in_pieces, pixels, seeded, traced

PLAIN = RampShape(2, "none")
OTHER = RampShape(4, "mean")


def clouds(records: int, scale: float = 1.0, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """(values [N, 6] with a constant among them, scores [N, 3] of a model that knows better)."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(records, 3, generator=generator) * 3
    values = torch.cat([scores, torch.randn(records, 2, generator=generator), torch.ones(records, 1)], 1)
    values[:, :3] += noise * torch.randn(records, 3, generator=generator)
    return values * scale, scores


def nothing(_: float) -> None: ...


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_ramp_learns_the_models_answers_whatever_the_scale_of_its_values(scale: float):
    values, scores = clouds(600, scale)
    (ramp,) = train(Features(({PLAIN: values},), scores, scores), [[PLAIN]], None, 30, nothing)
    assert ramp.agreement > 0.85
    agree = (values @ ramp.weight.T + ramp.bias).argmax(1) == scores.argmax(1)
    assert float(agree.float().mean()) > 0.85


def test_of_two_poolings_the_better_is_taken():
    values, scores = clouds(400)
    both = {OTHER: torch.randn(400, 6, generator=torch.Generator().manual_seed(4)), PLAIN: values}
    (ramp,) = train(Features((both,), scores, scores), [[OTHER, PLAIN]], None, 20, nothing)
    assert ramp.shape is PLAIN


def test_training_is_deterministic():
    values, scores = clouds(300)
    first, second = (train(Features(({PLAIN: values},), scores, scores), [[PLAIN]], None, 20, nothing) for _ in "ab")
    assert torch.equal(first[0].weight, second[0].weight)


def test_a_tempered_score_is_the_share_of_right_answers():
    generator = torch.Generator().manual_seed(1)
    truth = torch.randn(20_000, 3, generator=generator)
    answers = torch.multinomial(torch.softmax(truth, 1), 1, generator=generator).flatten()
    assert fit_temperature(4 * truth, answers) == pytest.approx(4, rel=0.1)


def test_few_records_without_a_mistake_do_not_make_a_ramp_certain():
    scores = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).repeat(16, 1)
    sure = torch.softmax(scores / fit_temperature(scores, scores.argmax(1)), 1).amax(1)
    assert float(sure.max()) < 0.99


def test_with_a_tail_a_ramp_learns_what_comes_before_it():
    tail = compile_source(
        Source("def forward(self, x: Tensor):\n    return torch.stack([x[:, 0], x[:, 1:].logsumexp(1)], 1)\n", ()),
        {},
        CPU,
    )
    values, heads = clouds(600)
    (ramp,) = train(Features(({PLAIN: values},), tail(heads), heads), [[PLAIN]], tail, 30, nothing)
    assert ramp.weight.shape == (3, 6)
    assert ramp.agreement > 0.85


@pytest.mark.parametrize("records", [64, 500, 2000])
def test_scarce_data_is_held_out_once_each(records: int):
    held = torch.cat([held for _, held in split(records)])
    assert len(split(records)) == FOLDS
    assert sorted(held.tolist()) == list(range(records))


def test_of_much_data_one_part_is_held_out():
    ((fit, held),) = split(5000)
    assert (len(fit), len(held)) == (4000, 1000)
    assert not set(fit.tolist()) & set(held.tolist())


def test_the_surest_leave_until_the_loss_is_spent():
    scores = torch.tensor([[4.0, 0], [3.0, 0], [2.0, 0], [1.0, 0]])
    agree = torch.tensor([True, False, True, False])
    assert leaves_at(scores, agree, loss=0.25).tolist() == [True, True, True, False]


def small_model() -> tuple[torch.nn.Module, object]:
    model = seeded(Residual())
    return model, in_pieces(traced(model, [IMAGE], {"pixels": pixels(2)}), [IMAGE])[1]


def test_what_is_gathered_stands_in_the_order_of_the_records():
    model, running = small_model()
    x = pixels(40)
    data = BootstrapData({"pixels": x}, (IMAGE,), None)
    found = gather(running, None, [[OTHER]] * 4, data, CPU, nothing)  # type: ignore[arg-type]
    assert torch.allclose(found.scores, model(torch.from_numpy(x)), atol=1e-5)
    assert found.pooled[3][OTHER].shape == (40, 8)


def test_a_model_that_always_says_the_same_cannot_teach():
    _, running = small_model()
    data = BootstrapData({"pixels": np.repeat(pixels(1), 64, 0)}, (IMAGE,), None)
    with pytest.raises(InvalidBootstrap, match="for all 64 bootstrap records"):
        gather(running, None, [[OTHER]] * 4, data, CPU, nothing)  # type: ignore[arg-type]


def test_small_maps_are_not_cut_into_grids_finer_than_they_are():
    poolings = [shape.pooling for shape in candidates(torch.zeros(1, 8, 3, 3), None)]
    assert poolings == ["mean", "moments", "grid2"]


def test_a_sequence_without_its_mask_is_not_masked():
    assert not candidates(torch.zeros(1, 7, 8), torch.ones(1, 9))[0].masked


def test_pooled_values_stay_within_memory():
    assert records_that_fit([1000] * 100) == 2**30 // 400_000
