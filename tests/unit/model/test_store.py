"""A prepared folder is whole or refused."""

from __future__ import annotations

import errno
import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from apparate.catalog import RampCatalog
from apparate.contract.document import Document
from apparate.contract.resource import TensorSpec
from apparate_worker.model.errors import InvalidPrepared
from apparate_worker.model.ramps import RampHead, RampShape, describe
from apparate_worker.model.sources import source_sha256
from apparate_worker.model.store import (
    CATALOG,
    FILES,
    RAMPS,
    SEGMENTS,
    _digest,
    load_prepared,
    publish,
    save_backbone,
    save_ramps,
)
from apparate_worker.model.store import MODEL as WEIGHTS
from support.nets import CPU, IMAGE, Residual, in_pieces, pixels, seeded, traced, write_model

MODEL = seeded(Residual())


def write_prepared(document: Document) -> RampCatalog:
    """A folder with untrained ramps and made-up latencies."""
    graph = traced(MODEL, [IMAGE], {"pixels": pixels(2)})
    text, running = in_pieces(graph, [IMAGE])
    ramps = len(running.segments) - 1
    heads = [RampHead(RampShape(4, "mean"), torch.randn(4, 8), torch.zeros(4), 2.0) for _ in range(ramps)]
    reach = np.arange(1.0, ramps + 1)[None]
    catalog = RampCatalog((1,), reach, np.full((1, ramps), 0.01), np.array([9.0]))
    extra = {
        "inputs": [IMAGE.model_dump(by_alias=True, mode="json")],
        "output": "logits",
        "classes": ["a", "b", "c", "d"],
        "ramps": [describe(head) for head in heads],
    }
    partial = document.base / "partial"
    partial.mkdir()
    save_backbone(partial, {n.name: v for n, v in graph.constants.items()}, text)
    save_ramps(partial, heads)
    document.prepared.parent.mkdir(parents=True, exist_ok=True)
    return publish(partial, document.prepared, replace(catalog, extra=extra))


@pytest.fixture
def document(tmp_path: Path) -> Document:
    found = write_model(tmp_path, MODEL, {"pixels": pixels(2)}, [IMAGE])
    write_prepared(found)
    return found


def test_a_published_model_answers_as_the_original(document: Document):
    prepared = load_prepared(document.prepared, document, CPU)
    x = torch.from_numpy(pixels(5, seed=3))
    assert torch.equal(prepared.model({"pixels": x}), MODEL(x))


def test_what_is_loaded_is_what_was_described(document: Document):
    prepared = load_prepared(document.prepared, document, CPU)
    assert (prepared.inputs, prepared.output, prepared.classes) == ((IMAGE,), "logits", ("a", "b", "c", "d"))
    assert [head.temperature for head in prepared.heads] == [2.0] * prepared.catalog.ramps


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", [CATALOG, *FILES])
@pytest.mark.parametrize("harm", [flip_a_byte, cut_short, Path.unlink])
def test_a_folder_that_was_changed_is_refused(document: Document, name: str, harm: Callable[[Path], None]):
    harm(document.prepared / name)
    with pytest.raises(InvalidPrepared, match=name.replace(".", r"\.")):
        load_prepared(document.prepared, document, CPU)


def sealed(folder: Path) -> None:
    """Give a changed folder digests that match, as a tool that writes it wrongly would."""
    content = json.loads((folder / CATALOG).read_text())
    content["files"] = {name: source_sha256(folder / name) for name in FILES}
    content["digest"] = _digest(content)
    (folder / CATALOG).write_text(json.dumps(content))


def with_tensors(name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        tensors = {key: value.clone() for key, value in load_file(folder / name).items()}
        change(tensors)
        save_file(tensors, folder / name)

    return harm


def with_catalog(**change: object) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        content = json.loads((folder / CATALOG).read_text())
        (folder / CATALOG).write_text(json.dumps(content | change))

    return harm


def no_code(folder: Path) -> None:
    (folder / SEGMENTS).write_text((folder / SEGMENTS).read_text().replace("torch.ops.aten.relu", "torch.ops.aten.rel"))


def half_a_file(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[next(name for name, value in tensors.items() if value.dim() == 4)]


def narrow(tensors: dict[str, torch.Tensor]) -> None:
    name = next(name for name, value in tensors.items() if value.dim() == 4)
    tensors[name] = tensors[name][:, :1].contiguous()


def two_classes(tensors: dict[str, torch.Tensor]) -> None:
    tensors |= {"0.weight": torch.ones(2, 8), "0.bias": torch.ones(2)}


def fewer_features(tensors: dict[str, torch.Tensor]) -> None:
    tensors["2.weight"] = tensors["2.weight"][:, :3].contiguous()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (half_a_file, "model.safetensors cannot be read"),
        (
            with_tensors(WEIGHTS, drop),
            "model.safetensors has no tensor .* which segments.json needs",
        ),
        (with_tensors(WEIGHTS, narrow), "model.safetensors does not fit segments.json"),
        (no_code, "segments.json cannot be run"),
        (with_tensors(RAMPS, lambda t: t.pop("1.bias")), "ramps.safetensors: ramp 1 has no '1.bias'"),
        (with_tensors(RAMPS, fewer_features), "ramps.safetensors does not fit segments.json"),
        (with_tensors(RAMPS, two_classes), "ramps.safetensors: ramp 0 says"),
        (with_catalog(ramps=[{"pooling": "none"}] * 4), "ramps.safetensors: ramp 0 has no 'dimensions'"),
        (with_catalog(inputs=7), "catalog.json does not describe a model"),
        (with_catalog(inputs=[{"name": "pixels"}]), "catalog.json does not describe a model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_loaded_is_told_by_file(document: Document, harm: Callable[[Path], None], said: str):
    harm(document.prepared)
    sealed(document.prepared)
    with pytest.raises(InvalidPrepared, match=said):
        load_prepared(document.prepared, document, CPU)


@pytest.mark.parametrize("name", [CATALOG, *FILES])
def test_a_file_that_cannot_be_read_is_told_by_name(document: Document, name: str, monkeypatch: pytest.MonkeyPatch):
    opened = Path.open

    def refuse(self: Path, *args: Any, **options: Any) -> Any:  # who runs as root may read everything
        if self.name == name:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InvalidPrepared, match=rf"{name} cannot be read: .*Permission denied"):
        load_prepared(document.prepared, document, CPU)


def test_a_latency_that_was_edited_is_found(document: Document):
    path = document.prepared / CATALOG
    content = json.loads(path.read_text())
    content["full"] = [10.0]
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidPrepared, match="changed after it was prepared"):
        load_prepared(document.prepared, document, CPU)


def test_a_catalog_that_is_only_written_otherwise_is_the_same(document: Document):
    path = document.prepared / CATALOG
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert load_prepared(document.prepared, document, CPU).catalog.ramps == 4


def test_a_model_that_was_never_prepared_says_what_to_do(tmp_path: Path):
    document = write_model(tmp_path, MODEL, {"pixels": pixels(2)}, [IMAGE])
    with pytest.raises(InvalidPrepared, match="apparate prepare"):
        load_prepared(document.prepared, document, CPU)


def test_a_folder_of_a_model_with_other_inputs_is_refused(document: Document):
    other = TensorSpec(name="pixels", datatype="UINT8", shape=(32, 32, 3))
    spec = document.model.spec
    changed = spec.model_copy(update={"model": spec.model.model_copy(update={"inputs": (other,)})})
    wrong = Document(document.model.model_copy(update={"spec": changed}), document.base)
    with pytest.raises(InvalidPrepared, match="other inputs"):
        load_prepared(document.prepared, wrong, CPU)


def test_publishing_again_takes_the_place_of_the_old_folder(document: Document):
    digest = write_prepared(document).digest
    assert load_prepared(document.prepared, document, CPU).catalog.digest == digest
    assert [path.name for path in document.prepared.parent.iterdir()] == ["small"]


def test_a_write_that_fails_has_its_number(tmp_path: Path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))  # as a full disk would, safetensors fails in its own way
    try:
        with pytest.raises(OSError, match=RAMPS) as caught:
            save_ramps(tmp_path, [RampHead(RampShape(4, "mean"), torch.randn(4, 8), torch.zeros(4), 2.0)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
