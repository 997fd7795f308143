"""Segments, run in order, are the model."""

from __future__ import annotations

import threading
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from apparate_worker.model.cutting import DEVICE, Cut, Source, keep
from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.graph import Graph
from apparate_worker.model.segments import SegmentedModel, assemble, compile_source
from support.nets import (
    CPU,
    IMAGE,
    TOKENS,
    Chain,
    Encoder,
    Residual,
    example_tokens,
    in_pieces,
    pixels,
    seeded,
    tokens,
    traced,
)

IMAGE_MODELS = {
    "residual": Residual(4),
    "chain": Chain(),
    "in place": Residual(3, inplace=True),
    "with a tail": Residual(3, grouped=True),
}


GRAPHS: dict[str, Graph] = {}


@cache
def image_model(name: str) -> tuple[nn.Module, SegmentedModel]:
    model = seeded(IMAGE_MODELS[name])
    return model, in_pieces(traced(model, [IMAGE], {"pixels": pixels(2)}), [IMAGE])[1]


@cache
def encoder() -> tuple[nn.Module, Cut, SegmentedModel]:
    model = seeded(Encoder(), *example_tokens())
    text, running = in_pieces(traced(model, TOKENS, tokens(2, 5)), TOKENS, mask=1)
    return model, text, running


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(sorted(IMAGE_MODELS)), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_an_image_model_in_segments_gives_the_same_bits_for_any_batch(name: str, batch: int, seed: int):
    model, running = image_model(name)
    x = torch.from_numpy(pixels(batch, seed))
    assert torch.equal(running({"pixels": x}), model(x))


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 9), st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_an_encoder_in_segments_gives_the_same_bits_for_any_batch_and_length(batch: int, length: int, seed: int):
    model, _, running = encoder()
    x = {name: torch.from_numpy(values) for name, values in tokens(batch, length, seed).items()}
    torch.backends.mha.set_fastpath_enabled(False)  # the fused attention of some calls rounds otherwise
    wanted = model(**x)
    torch.backends.mha.set_fastpath_enabled(True)
    assert torch.equal(running(x), wanted)


def test_after_each_advance_the_state_sits_at_the_next_site():
    _, running = image_model("residual")
    state = running.start({"pixels": torch.from_numpy(pixels(3))})
    shapes = [tuple(running.site(running.advance(r, state)).shape) for r in range(4)]
    assert shapes == [(3, 8, 16, 16)] * 4


def test_the_mask_is_at_hand_at_every_site():
    _, _, running = encoder()
    x = {name: torch.from_numpy(values) for name, values in tokens(2, 7).items()}
    assert running.mask(running.advance(0, running.start(x))) is x["attention_mask"]


def test_a_model_without_a_mask_has_none():
    _, running = image_model("chain")
    assert running.mask(running.start({"pixels": torch.from_numpy(pixels(1))})) is None


def test_what_goes_around_the_sites_is_computed_once_and_not_in_the_segments():
    _, text, _ = encoder()
    assert text.prologue is not None
    assert not [s for s in text.segments[1:] if "v_inputs_1" in s.code.split(":")[0]]


def test_no_device_is_baked_into_the_text():
    _, text, _ = encoder()
    codes = "".join(s.code for s in (*text.segments, text.prologue or text.segments[0]))
    assert 'device("cpu")' not in codes
    assert codes.count("torch.device") == codes.count(DEVICE)


def test_passes_in_two_threads_do_not_meet():
    model, running = image_model("residual")
    inputs = [torch.from_numpy(pixels(4, seed)) for seed in range(2)]
    wanted, wrong = [model(x) for x in inputs], []

    def passes(i: int) -> None:
        wrong.extend(i for _ in range(30) if not torch.equal(running({"pixels": inputs[i]}), wanted[i]))

    threads = [threading.Thread(target=passes, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "code",
    [
        "def forward(self, x: Tensor):\n    return open('/etc/passwd')\n",
        "def forward(self, x: Tensor):\n    import os\n    return x\n",
        "def forward(self, x: Tensor):\n    return torch.load('x')\n",
    ],
)
def test_a_stored_text_that_reaches_for_more_than_operators_does_not_compile(code: str):
    with pytest.raises(UnsupportedModel):
        compile_source(Source(code, ()), {}, CPU)


def test_a_missing_input_is_named():
    _, running = image_model("chain")
    with pytest.raises(KeyError, match="pixels"):
        running.start({"image": torch.from_numpy(np.zeros((1, 16, 16, 3), np.uint8))})


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(sorted(IMAGE_MODELS)), st.sets(st.integers(0, 2)), st.integers(1, 4))
def test_a_model_cut_at_fewer_sites_is_the_same(name: str, sites: set[int], batch: int):
    model, _ = image_model(name)
    graph = traced(model, [IMAGE], {"pixels": pixels(2)}) if name not in GRAPHS else GRAPHS[name]
    GRAPHS[name] = graph
    text, _ = in_pieces(graph, [IMAGE])
    kept = [site for site in sorted(sites) if site < len(text.segments) - 1]
    fewer = assemble(keep(text, kept), {node.name: value for node, value in graph.constants.items()}, CPU)
    assert len(fewer.segments) == len(kept) + 1
    x = torch.from_numpy(pixels(batch))
    assert torch.equal(fewer({"pixels": x}), model(x))


def test_joined_segments_take_what_each_of_them_took():
    model, text, _ = encoder()
    graph = traced(model, TOKENS, tokens(2, 5))
    fewer = assemble(keep(text, [1, 4]), {node.name: value for node, value in graph.constants.items()}, CPU)
    x = {name: torch.from_numpy(values) for name, values in tokens(3, 8, seed=2).items()}
    assert torch.equal(fewer(x), encoder()[2](x))


def test_states_whose_inputs_differ_in_length_are_not_alike_even_when_their_values_are():
    model = SegmentedModel(("tokens", "mask"), (lambda value: value,), mask_input="mask")
    short, long = (model.start({"tokens": torch.ones(2, length), "mask": torch.ones(2, length)}) for length in (5, 7))
    short.value, long.value = torch.ones(2, 3), torch.ones(2, 3)
    assert model.likeness(short) != model.likeness(long)
    assert model.likeness(short) == model.likeness(model.select(short, [0]))
    assert model.join([model.select(short, [0]), short]).mask.shape == (3, 5)
