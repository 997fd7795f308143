"""Which back end a model is prepared for, and what the worker does with it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apparate.contract.document import Document
from apparate_worker.model import backends as running
from apparate_worker.model.backends import as_tensors
from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.onnx_model import OnnxModel
from apparate_worker.model.segments import SegmentedModel
from apparate_worker.model.store import CATALOG, _digest, load_prepared, read_catalog
from apparate_worker.prepare import backends, prepare
from apparate_worker.prepare.backends import Candidate, fastest, parity
from apparate_worker.prepare.compiling import reason_in, segment_program
from apparate_worker.prepare.exporting import quiet_exporters
from apparate_worker.prepare.profiling import in_one
from apparate_worker.prepare.progress import Step
from support.nets import (
    CPU,
    IMAGE,
    TOKENS,
    Encoder,
    Residual,
    example_tokens,
    in_pieces,
    pixels,
    seeded,
    tokens,
    traced,
    write_model,
)

SIZES = ((2, 12), (3, 7), (16, 12))  # rows and tokens: of the example, and of others; torch promises nothing of 1
SCORES = torch.from_numpy(np.random.default_rng(0).normal(size=(2000, 3)).astype(np.float32))


def serving(backend: str) -> dict[str, Any]:
    return {"maxBatch": 2, "device": "cpu", "backend": backend}


def image_document(folder: Path, backend: str, **keywords: Any) -> Document:
    model = seeded(Residual(blocks=2, **keywords))
    arguments = ", ".join(["blocks=2", *(f"{name}={value}" for name, value in keywords.items())])
    return write_model(folder, model, {"pixels": pixels(96)}, [IMAGE], arguments=arguments, serving=serving(backend))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """A model with a tail, prepared with whatever is fastest here; nobody may change its folder."""
    document = image_document(tmp_path_factory.mktemp("auto"), "auto", grouped=True)
    prepare(document)
    return document


def backend_of(document: Document) -> dict[str, Any]:
    return dict(read_catalog(document.prepared).extra["backend"])


def test_auto_takes_the_fastest_that_answers_alike_and_says_why(prepared: Document):
    found = backend_of(prepared)
    by_name = {one["backend"]: one for one in found["candidates"]}
    assert set(by_name) == {"eager", "onnx"}
    assert by_name["onnx"]["records"] == 96
    assert by_name["onnx"]["changed"] == 0
    costs = {name: sum(ms / size for ms, size in zip(one["ms"], (1, 2), strict=True)) for name, one in by_name.items()}
    assert found["name"] == ("onnx" if costs["onnx"] <= 0.97 * costs["eager"] else "eager")
    assert "eager" in found["reason"]


def test_a_model_in_onnx_answers_as_the_source_does_and_so_do_its_ramps(tmp_path: Path):
    document = image_document(tmp_path, "onnx", grouped=True)
    prepare(document)
    served = load_prepared(document.prepared, document, CPU)
    eager = load_prepared(document.prepared, without_backend(document), CPU)
    assert isinstance(served.model, OnnxModel)
    assert isinstance(eager.model, SegmentedModel)
    x = {"pixels": torch.from_numpy(pixels(5, seed=7))}
    says = tuple((r, True) for r in range(len(served.heads)))
    with torch.inference_mode():
        torch.testing.assert_close(served.model(x), eager.model(x), rtol=1e-4, atol=1e-4)
        states = served.model.start(x, says), eager.model.start(x, says)
        for r in range(len(says)):
            said = [
                one.heads[r].answer(one.model.site(one.model.advance(r, state)), None)
                for one, state in zip((served, eager), states, strict=True)
            ]
            torch.testing.assert_close(*said, rtol=1e-3, atol=1e-4)


def without_backend(document: Document) -> Document:
    """The same folder as of before there were back ends."""
    path = document.prepared / CATALOG
    content = json.loads(path.read_text())
    content = {name: value for name, value in content.items() if name not in ("backend", "digest")}
    path.write_text(json.dumps(content | {"digest": _digest(content)}))
    return document


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, Document]:
    """An encoder, and what was prepared of it for ONNX Runtime."""
    model = seeded(Encoder(layers=2), *example_tokens())
    document = write_model(
        tmp_path_factory.mktemp("encoder"),
        model,
        tokens(96, 12),
        TOKENS,
        arguments="layers=2",
        serving=serving("onnx"),
        bootstrap={"data": "data.npz", "epochs": 5},
    )
    prepare(document)
    return model, document


def test_an_encoder_in_onnx_takes_batches_and_lengths_of_any_size(encoder: tuple[Encoder, Document]):
    model, document = encoder
    served = load_prepared(document.prepared, document, CPU)
    for batch, length in ((1, 1), (1, 7), (5, 30)):
        x = {name: torch.from_numpy(values) for name, values in tokens(batch, length, seed=3).items()}
        with torch.inference_mode():
            torch.testing.assert_close(served.model(x), model(*x.values()), rtol=1e-4, atol=1e-4)


def test_a_back_end_that_cannot_run_here_gives_way_to_torch(encoder: tuple[Encoder, Document], monkeypatch):
    _, document = encoder
    monkeypatch.setattr("apparate_worker.model.store.in_onnx", refuse)
    served = load_prepared(document.prepared, document, CPU)
    assert isinstance(served.model, SegmentedModel)


def refuse(*_: Any, **__: Any) -> Any:
    raise UnsupportedModel("ONNX Runtime cannot run it")


def test_code_compiled_for_another_processor_is_not_run():
    here = running.machine_of(CPU)
    assert running.unlike(here, CPU) == ""
    assert running.unlike({**here, "cpu_flags": [*here["cpu_flags"], "amx_v9"]}, CPU).startswith(
        "this processor has no amx_v9"
    )
    assert "torch 1.0" in running.unlike({**here, "torch": "1.0"}, CPU)


def test_a_candidate_that_changes_answers_is_refused():
    changed = SCORES.clone()
    changed[:3] = changed[:3].flip(1)
    assert "changes 3 of 2000 answers, allowed are 0.1%" in parity("onnx", SCORES, changed).refused


def test_a_candidate_whose_scores_are_far_off_is_refused():
    assert "standard deviations" in parity("onnx", SCORES, SCORES * 1.01).refused
    assert parity("onnx", SCORES, SCORES * float("nan")).refused


def test_a_candidate_within_rounding_may_be_chosen():
    found = parity("onnx", SCORES, SCORES * (1 + 1e-6))
    assert (found.refused, found.changed, found.records) == ("", 0, 2000)


@pytest.mark.parametrize(
    ("onnx_ms", "chosen"), [((0.5, 0.8), "onnx"), ((0.99, 1.59), "eager"), ((2.0, 0.7), "eager"), ((), "eager")]
)
def test_the_least_time_for_a_request_over_all_batch_sizes_decides(onnx_ms: tuple[float, ...], chosen: str):
    found = [Candidate("eager", ms=(1.0, 1.6)), Candidate("onnx", ms=onnx_ms, refused="" if onnx_ms else "it fails")]
    assert fastest(found, (1, 2))[0] == chosen


def test_one_that_was_asked_for_and_changes_answers_is_not_prepared(tmp_path: Path, monkeypatch):
    document = image_document(tmp_path, "onnx")
    monkeypatch.setattr(backends, "TOLERANCE", 0.0)
    with pytest.raises(
        UnsupportedModel, match=r"spec\.serving\.backend is onnx: a score differs by .* take auto or eager"
    ):
        prepare(document)


def without_compiler(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """A machine without a C++ compiler."""
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)


def test_auto_passes_on_to_the_next_and_ends_with_torch_when_the_others_cannot_be_had(tmp_path: Path, monkeypatch):
    document, said = image_document(tmp_path, "auto"), []
    monkeypatch.setattr(backends, "TOLERANCE", 0.0)
    without_compiler(monkeypatch, tmp_path)
    prepare(document, progress=lambda step: said.append(step))
    found = backend_of(document)
    assert found["name"] == "eager"
    assert [one["backend"] for one in found["candidates"]] == ["eager", "onnx", "compile"]
    assert "onnx: a score differs by" in found["reason"]
    assert "compile: torch.compile needs a C++ compiler (g++ or clang++)" in found["reason"]
    assert any(isinstance(step, Step) and "eager: there is no other" in step.message for step in said)
    assert not (document.prepared / "model.onnx").exists()


def test_compile_without_a_compiler_is_refused_before_anything_is_trained(tmp_path: Path, monkeypatch):
    document = image_document(tmp_path, "compile")
    without_compiler(monkeypatch, tmp_path)
    with pytest.raises(UnsupportedModel, match=r"spec\.serving\.backend is compile, which needs a C\+\+ compiler"):
        prepare(document)


def test_a_segment_is_compiled_for_every_size_of_its_tensors_and_every_number_beside_them():
    graph, seen = traced(seeded(Encoder(layers=1), *example_tokens()), TOKENS, tokens(2, 12)), 0
    text, model = in_pieces(graph, TOKENS)
    constants = {node.name: value for node, value in graph.constants.items()}
    states = [model.start({k: torch.from_numpy(v) for k, v in tokens(*size).items()}) for size in SIZES]
    with torch.no_grad(), quiet_exporters():
        for k, source in enumerate(text.segments):
            example, *others = [(one.value.clone(), *[one.sides[i] for i in source.sides]) for one in states]
            seen += sum(type(value) is int for value in example)
            run = segment_program(source, constants, example).run_decompositions().module()
            for given in others:
                torch.testing.assert_close(run(*as_tensors(given)), model.segments[k](*given), rtol=1e-4, atol=1e-5)
            for state in states:
                model.advance(k, state)
    assert seen


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("  File x\nRuntimeError: no such size\n\nUse tlparse to see", "RuntimeError: no such size"),
        ("a.b.InductorError: CppCompileError: none\nadvice", "a.b.InductorError: CppCompileError: none"),
        ("Killed\n", "Killed"),
        ("", "status 1"),
    ],
)
def test_why_compiling_failed_is_told_without_torchs_advice(said: str, reason: str):
    assert reason_in(said, 1) == reason


def test_onnx_on_a_gpu_is_refused_with_the_next_step(tmp_path: Path):
    document = image_document(tmp_path, "onnx")
    job = backends.Job(document, torch.device("cuda"), tmp_path, "key", lambda _: None)
    with pytest.raises(UnsupportedModel, match="ONNX Runtime runs models on a CPU here, the device is cuda"):
        backends._onnx(job, None, None, {})  # type: ignore[arg-type]


def test_a_profile_in_one_piece_gives_each_ramp_its_border_and_shares_the_whole():
    steps, full = np.array([[2.0, 3.0, 3.0]]), np.array([7.0])
    found = in_one((1,), steps, np.array([[0.1, 0.2]]), full)
    assert found.overhead_ms.tolist() == [[0.6, 0.7]]  # a border costs half of the millisecond in excess
    assert found.full_ms.tolist() == [7.0]
    np.testing.assert_allclose(found.reach_ms, [[7 * 1.5 / 6.5, 7 * 4.0 / 6.5]])


def test_a_changed_file_of_a_back_end_is_found(tmp_path: Path):
    document = image_document(tmp_path, "onnx")
    prepare(document)
    data = document.prepared / "model.onnx.data"
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    with pytest.raises(Exception, match=r"model\.onnx\.data was changed after it was prepared"):
        load_prepared(document.prepared, replace(document), CPU)
