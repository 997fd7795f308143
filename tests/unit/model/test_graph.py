"""Sites of known graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from apparate.contract.resource import TensorSpec
from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.graph import head, kind_of, sites
from support.nets import IMAGE, TOKENS, Chain, Encoder, Residual, example_tokens, pixels, seeded, tokens, traced


def kinds(model: nn.Module, *specs: TensorSpec) -> list[str]:
    example = {"pixels": pixels(2)} if specs[0] is IMAGE else tokens(2, 5)
    ready = seeded(model) if specs[0] is IMAGE else seeded(model, *example_tokens())
    return [kind_of(node) for node in sites(traced(ready, specs, example))]


def test_a_residual_net_has_a_site_after_its_stem_and_after_each_block_but_the_last():
    assert kinds(Residual(blocks=4), IMAGE) == ["relu"] * 4


def test_nothing_inside_a_residual_block_is_a_site():
    graph = traced(seeded(Residual(blocks=3)), [IMAGE], {"pixels": pixels(2)})
    after_sums = [node.args[0].name for node in sites(graph)[1:]]  # type: ignore[union-attr]
    assert all(name.startswith("add") for name in after_sums)


def test_a_chain_has_one_site_for_each_layer_that_works_with_the_activation_after_it():
    assert kinds(Chain(), IMAGE) == ["relu", "relu", "hardtanh", "relu", "hardtanh", "relu"]


def test_an_encoder_with_a_mask_has_its_sites_on_the_sums_that_carry_everything():
    assert kinds(Encoder(layers=3), *TOKENS) == ["embedding", *["add"] * 5]


def test_layers_that_work_in_place_are_cut_like_others():
    assert len(kinds(Residual(blocks=4, inplace=True), IMAGE)) == 4


def test_a_model_that_ends_with_its_linear_layer_has_no_tail():
    assert head(traced(seeded(Residual()), [IMAGE], {"pixels": pixels(2)})) is None


def test_what_follows_the_last_layer_is_the_tail():
    found = head(traced(seeded(Residual(grouped=True)), [IMAGE], {"pixels": pixels(2)}))
    assert found is not None
    assert kind_of(found) == "linear"


class OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.only = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.only(x)
        return found


class Branching(OneLayer):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return super().forward(x)
        return -super().forward(x)


X = TensorSpec(name="x", datatype="FP32", shape=(4,))


def test_a_model_without_a_place_for_a_ramp_is_refused():
    with pytest.raises(UnsupportedModel, match="no place for a ramp"):
        sites(traced(OneLayer().eval(), [X], {"x": torch.ones(2, 4).numpy()}))


def test_a_model_whose_path_depends_on_its_data_is_refused():
    with pytest.raises(UnsupportedModel, match="cannot be traced"):
        traced(Branching().eval(), [X], {"x": torch.ones(2, 4).numpy()})
