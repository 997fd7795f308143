"""A model in ONNX Runtime beside the same one in torch: whole, in pieces, divided and joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from apparate.plan import Plan
from apparate_worker.engine import CpuLink, Engine, Output, Schedule
from apparate_worker.model import onnx_graph
from apparate_worker.model.onnx_model import OnnxHead, OnnxModel
from apparate_worker.model.ramps import RampHead
from apparate_worker.model.segments import SegmentedModel
from apparate_worker.prepare.exporting import to_onnx
from apparate_worker.prepare.features import candidates
from support.nets import (
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

TOLERANCE = 1e-4


@dataclass(frozen=True)
class Pair:
    """The same model and ramps in torch and in ONNX Runtime."""

    torch: SegmentedModel
    heads: tuple[RampHead, ...]
    onnx: OnnxModel
    onnx_heads: tuple[OnnxHead, ...]
    example: dict[str, Any]

    def engines(self) -> tuple[Engine, Engine]:
        return Engine(self.torch, self.heads, CpuLink()), Engine(self.onnx, self.onnx_heads, CpuLink())


MODELS = {
    "chain": (lambda: seeded(Chain()), (IMAGE,), lambda: {"pixels": pixels(6)}, None),
    "residual": (lambda: seeded(Residual()), (IMAGE,), lambda: {"pixels": pixels(6)}, None),
    "encoder": (lambda: seeded(Encoder(), *example_tokens()), TOKENS, lambda: tokens(6, 9), 1),
}


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    make, specs, arrays, mask = MODELS[request.param]
    example = arrays()
    graph = traced(make(), specs, example)
    text, running = in_pieces(graph, specs, mask)
    constants = {node.name: value for node, value in graph.constants.items()}
    folder = tmp_path_factory.mktemp(request.param)
    onnx_graph.save(to_onnx(text, constants, [torch.from_numpy(example[s.name][:2]) for s in specs], specs), folder)
    heads = all_kinds_of_heads(running, example)
    mask_input = text.inputs[mask] if mask is not None else None
    backbone = onnx_graph.load(folder, [onnx_graph.site_name(r) for r in range(len(heads))])
    model = OnnxModel(
        onnx_graph.with_ramps(backbone, heads, mask_input),
        inputs=text.inputs,
        mask_input=mask_input,
        ramps=len(heads),
        threads=1,
        reach_ms=[1.0 + r for r in range(len(heads))],
    )
    return Pair(running, heads, model, tuple(OnnxHead(head, r) for r, head in enumerate(heads)), example)


def all_kinds_of_heads(model: SegmentedModel, example: dict[str, Any]) -> tuple[RampHead, ...]:
    """A ramp of another pooling at each site, as far as there are some."""
    generator = torch.Generator().manual_seed(0)
    state, found = model.start(as_tensors(example)), []
    with torch.inference_mode():
        for r in range(len(model.segments) - 1):
            value, mask = model.site(model.advance(r, state)), model.mask(state)
            kinds = candidates(value, mask)
            shape = kinds[r % len(kinds)]
            width = RampHead(shape, torch.zeros(2, 1), torch.zeros(2), 1.0).pool(value, mask).shape[1]
            found.append(RampHead(shape, torch.randn(3, width, generator=generator), torch.ones(3), 1.7))
    return tuple(found)


def as_tensors(arrays: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(values) for name, values in arrays.items()}


def plan(model: OnnxModel, opened: Sequence[int], closed: Sequence[int] = ()) -> Schedule:
    ramps = sorted({*opened, *closed})
    return Schedule(Plan.of(1, ramps, [0.5 if r in opened else 0.0 for r in ramps]), len(model.segments) - 1)


def heard(engine: Engine, example: dict[str, Any], schedule: Schedule, *, shadow: bool = False) -> list[Output]:
    with torch.inference_mode():
        return [one for one in engine.run(engine.start(example, schedule, shadow=shadow)) if one is not None]


def assert_alike(expected: Sequence[Output], found: Sequence[Output]) -> None:
    assert [one.step for one in found] == [one.step for one in expected]
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(other.values, one.values, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_it_gives_the_scores_that_torch_gives(pair: Pair, size: int):
    inputs = as_tensors({name: values[:size] for name, values in pair.example.items()})
    with torch.inference_mode():
        expected, found = pair.torch(inputs), pair.onnx(inputs)
    torch.testing.assert_close(found, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert torch.equal(found.argmax(1), expected.argmax(1))


@pytest.mark.parametrize(("opened", "closed"), [((), ()), ((), (0, 2)), ((1,), ()), ((0, 2), (1,))])
def test_ramps_say_what_they_say_in_torch_however_the_model_is_cut(
    pair: Pair, opened: tuple[int, ...], closed: tuple[int, ...]
):
    schedule = plan(pair.onnx, opened, closed)
    in_torch, in_onnx = pair.engines()
    before = heard(in_onnx, pair.example, schedule)
    in_onnx.arrange(schedule)
    expected = heard(in_torch, pair.example, schedule)
    assert_alike(expected, before)
    assert_alike(expected, heard(in_onnx, pair.example, schedule))


def test_ramps_that_are_off_are_heard_in_a_pass_that_looks_at_them(pair: Pair):
    schedule = plan(pair.onnx, (1,))
    in_torch, in_onnx = pair.engines()
    in_onnx.arrange(schedule)
    assert_alike(
        heard(in_torch, pair.example, schedule, shadow=True), heard(in_onnx, pair.example, schedule, shadow=True)
    )


def test_rows_part_where_an_exit_is_open_and_are_joined_again(pair: Pair):
    _, engine = pair.engines()
    schedule = plan(pair.onnx, (1,))
    engine.arrange(schedule)
    with torch.inference_mode():
        whole = heard(engine, pair.example, schedule)[-1].values
        journey = engine.start(pair.example, schedule)
        next(engine.run(journey))  # up to the open exit
        some, others = engine.part(journey, [4, 0]), engine.part(journey, [1, 2, 3, 5])
        assert engine.place(some) == engine.place(others)
        *_, last = engine.run(engine.join([some, others]))
    assert last is not None
    np.testing.assert_allclose(last.values, whole[[4, 0, 1, 2, 3, 5]], rtol=TOLERANCE, atol=TOLERANCE)


def test_a_pass_under_way_keeps_its_pieces_when_a_plan_cuts_the_model_anew(pair: Pair):
    in_torch, engine = pair.engines()
    schedule = plan(pair.onnx, (1,))
    engine.arrange(schedule)
    with torch.inference_mode():
        journey = engine.start(pair.example, schedule)
        outputs = engine.run(journey)
        first = next(outputs)
        engine.arrange(plan(pair.onnx, (0,)))
        rest = list(outputs)
        fresh = engine.start(pair.example, schedule)
        next(engine.run(fresh))
    assert_alike(heard(in_torch, pair.example, schedule), [one for one in (first, *rest) if one is not None])
    assert engine.place(journey) != engine.place(fresh)


def test_without_an_open_exit_the_model_is_one_piece(pair: Pair):
    assert pair.onnx.cuts([]) == []


def test_behind_an_open_exit_no_piece_is_long(pair: Pair):
    last = len(pair.onnx.segments) - 2
    assert pair.onnx.cuts([0]) == list(range(0, last + 1, 2))  # a millisecond for each segment, two for a piece


def test_a_graph_whose_weights_lie_elsewhere_is_refused(tmp_path: Path):
    graph = traced(seeded(Residual(blocks=2)), [IMAGE], {"pixels": pixels(4)})
    text, _ = in_pieces(graph, [IMAGE])
    constants = {node.name: value for node, value in graph.constants.items()}
    model = to_onnx(text, constants, [torch.from_numpy(pixels(2))], [IMAGE])
    onnx_graph.save(model, tmp_path)
    path = tmp_path / onnx_graph.GRAPH
    path.write_bytes(path.read_bytes().replace(b"model.onnx.data", b"../../etc/hosts"))
    with pytest.raises(ValueError, match=r"is in \.\./\.\./etc/hosts, expected model\.onnx\.data"):
        onnx_graph.load(tmp_path, [])
