"""Ramps: what each pooling computes, and that the twin on the host says the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apparate_worker.model.cutting import Source
from apparate_worker.model.ramps import POOLINGS, Pooling, RampHead, RampShape, Tail
from support.nets import CPU

IMAGE = torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
TEXT = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]])


def a_head(shape: RampShape, width: int, tail: Tail | None = None) -> RampHead:
    generator = torch.Generator().manual_seed(2)
    return RampHead(shape, torch.randn(3, width, generator=generator), torch.randn(3, generator=generator), 1.7, tail)


def pooled(dimensions: int, pooling: Pooling, value: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return a_head(RampShape(dimensions, pooling, masked=mask is not None), 4).pool(value, mask)


def test_a_picture_is_pooled_to_its_mean():
    assert torch.allclose(pooled(4, "mean", IMAGE), IMAGE.mean((2, 3)))


def test_moments_are_the_mean_and_the_mean_square():
    assert torch.allclose(pooled(4, "moments", IMAGE), torch.cat([IMAGE.mean((2, 3)), (IMAGE**2).mean((2, 3))], 1))


@pytest.mark.parametrize(("pooling", "cells"), [("grid2", 4), ("grid4", 16)])
def test_a_grid_keeps_where_things_are(pooling: Pooling, cells: int):
    found = pooled(4, pooling, IMAGE)
    assert found.shape == (3, 4 * cells)
    side = int(cells**0.5)
    assert torch.allclose(found[:, 0], IMAGE[:, 0, : 8 // side, : 8 // side].mean((1, 2)))


def test_padding_does_not_change_a_masked_mean():
    short = pooled(3, "mean", TEXT[1:2, :2], MASK[1:2, :2])
    assert torch.allclose(pooled(3, "mean", TEXT, MASK)[1:2], short, atol=1e-6)


def test_padding_does_not_change_a_masked_maximum():
    short = pooled(3, "mean_max", TEXT[1:2, :2], MASK[1:2, :2])
    assert torch.allclose(pooled(3, "mean_max", TEXT, MASK)[1:2], short, atol=1e-6)


def test_a_sequence_without_a_mask_is_pooled_whole():
    assert torch.allclose(pooled(3, "mean", TEXT), TEXT.mean(1))


def test_the_first_token_can_stand_for_all():
    assert torch.equal(pooled(3, "first", TEXT), TEXT[:, 0])


@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_every_pooling_gives_vectors(dimensions: int):
    value = {2: TEXT[:, 0], 3: TEXT, 4: IMAGE}[dimensions]
    assert all(pooled(dimensions, pooling, value).dim() == 2 for pooling in POOLINGS[dimensions])


def a_tail() -> Tail:
    code = "def forward(self, x: Tensor):\n    return torch.stack([x[:, 0], torch.logsumexp(x[:, 1:], 1)], 1)\n"
    return Tail.of(Source(code, ()), {}, CPU)


def test_logits_are_divided_by_the_temperature():
    head = a_head(RampShape(2, "none"), 4)
    weight, bias, temperature = head.numpy()
    wanted = (TEXT[:, 0].numpy() @ weight.T + bias) / temperature
    assert np.allclose(head.logits(TEXT[:, 0]).numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("tail", [None, a_tail()])
def test_the_twin_on_the_host_says_the_same(tail: Tail | None):
    head = a_head(RampShape(2, "none"), 4, tail)
    assert np.allclose(head.on_host()(TEXT[:, 0].numpy()), head.logits(TEXT[:, 0]).numpy(), atol=1e-5)


def test_a_ramp_ends_with_the_tail_of_its_model():
    assert a_head(RampShape(2, "none"), 4, a_tail()).logits(TEXT[:, 0]).shape == (3, 2)
