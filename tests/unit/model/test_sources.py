"""Models as they come, and every way in which they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apparate.contract.document import Document, parse_documents
from apparate_worker.model.errors import InvalidSource
from apparate_worker.model.sources import check_sha256, load_source, source_sha256
from support.nets import IMAGE, Residual, pixels, seeded, write_model


@pytest.fixture
def document(tmp_path: Path) -> Document:
    return write_model(tmp_path, seeded(Residual()), {"pixels": pixels(4)}, [IMAGE])


def with_model(document: Document, **changes: Any) -> Document:
    spec = document.model.spec
    model = spec.model.model_copy(update=changes)
    return Document(document.model.model_copy(update={"spec": spec.model_copy(update={"model": model})}), document.base)


def test_an_entrypoint_gives_a_model_that_is_called_by_position(document: Document):
    scores = load_source(document)(torch.from_numpy(pixels(3)))
    assert scores.shape == (3, 4)


def test_a_loaded_model_is_frozen(document: Document):
    model = load_source(document)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())


def test_another_file_than_the_expected_one_is_refused(document: Document):
    with pytest.raises(InvalidSource, match="the document expects 000"):
        load_source(with_model(document, sha256="0" * 64))


def test_the_expected_file_is_taken(document: Document):
    check_sha256(document.source, source_sha256(document.source))


def test_a_missing_source_is_named(document: Document):
    with pytest.raises(InvalidSource, match=r"nowhere\.safetensors does not exist"):
        load_source(with_model(document, source="nowhere.safetensors"))


@pytest.mark.parametrize(
    ("entrypoint", "words"),
    [
        ("no_such_package.at_all:load", "no_such_package.at_all:load cannot be imported"),
        ("json:no_such_function", "module json has no no_such_function"),
    ],
)
def test_an_entrypoint_that_is_not_there_is_named(document: Document, entrypoint: str, words: str):
    with pytest.raises(InvalidSource, match=words):
        load_source(with_model(document, entrypoint=entrypoint))


@pytest.mark.parametrize(
    ("function", "words"), [("broken", "RuntimeError: no luck today"), ("not_a_model", "expected an nn.Module")]
)
def test_an_entrypoint_that_fails_says_how(document: Document, function: str, words: str):
    module = str(document.model.spec.model.entrypoint).partition(":")[0]
    with pytest.raises(InvalidSource, match=words):
        load_source(with_model(document, entrypoint=f"{module}:{function}"))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def load(path", "SyntaxError: "),
        ("raise RuntimeError('no luck today')", "RuntimeError: no luck today"),
        ("import sys\nsys.exit(5)", "SystemExit: 5"),
        ("import json\njson.nothing", "AttributeError: module 'json'"),
    ],
)
def test_an_entrypoint_whose_module_fails_says_how(document: Document, code: str, words: str):
    name = f"fails_{abs(hash(code))}"
    (document.base / f"{name}.py").write_text(code)
    with pytest.raises(InvalidSource, match=f"entrypoint {name}:load cannot be imported: {words}"):
        load_source(with_model(document, entrypoint=f"{name}:load"))


def test_an_entrypoint_that_exits_says_so(document: Document):
    (document.base / "leaves.py").write_text("import sys\ndef load(path):\n    sys.exit('no GPU')\n")
    with pytest.raises(InvalidSource, match=r"leaves:load failed on .*: SystemExit: no GPU"):
        load_source(with_model(document, entrypoint="leaves:load"))


def test_a_model_without_named_inputs_is_refused(document: Document):
    with pytest.raises(InvalidSource, match=r"spec\.model\.inputs is empty"):
        load_source(with_model(document, inputs=()))


FOLDER = """
apiVersion: apparate.dev/v1alpha1
kind: EarlyExitModel
metadata: {name: folder}
spec:
  model:
    source: bert
    format: huggingface
    inputs: [{name: input_ids, datatype: INT64, shape: [-1]}, {name: attention_mask, datatype: INT64, shape: [-1]}]
  bootstrap: {data: data.npz, epochs: 10}
  serving: {maxBatch: 2, device: cpu}
"""


def folder_document(base: Path) -> Document:
    return parse_documents(FOLDER, origin="folder.yaml", base=base)[0]


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path):
    (tmp_path / "bert").mkdir()
    with pytest.raises(InvalidSource, match=r"no config\.json"):
        load_source(folder_document(tmp_path))


def test_a_folder_with_pickled_weights_only_is_refused(tmp_path: Path):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text("{}")
    (tmp_path / "bert" / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(InvalidSource, match="pickled weights are not read"):
        load_source(folder_document(tmp_path))


@pytest.mark.parametrize(("config", "words"), [("{", "not a JSON object"), ('{"architectures": ["GPT"]}', "GPT")])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, config: str, words: str):
    (tmp_path / "bert").mkdir()
    (tmp_path / "bert" / "config.json").write_text(config)
    (tmp_path / "bert" / "model.safetensors").write_bytes(b"")
    with pytest.raises(InvalidSource, match=words):
        load_source(folder_document(tmp_path))


def test_the_digest_of_a_folder_covers_names_and_contents(tmp_path: Path):
    (tmp_path / "a").write_text("x")
    before = source_sha256(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    renamed = source_sha256(tmp_path)
    np.save(tmp_path / "c.npy", np.zeros(1))
    assert len({before, renamed, source_sha256(tmp_path)}) == 3
