"""`apparate init`: a document that `serve` takes, from what lies in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apparate.cli.main import run
from apparate.contract.document import Document, load_documents


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def a_folder(name: str, config: Any = None, *files: str) -> Path:
    folder = Path(name)
    folder.mkdir()
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for file in files:
        (folder / file).write_bytes(b"")
    return folder


def written() -> Document:
    (path,) = Path().glob("*/model.yaml")
    (found,) = load_documents(path)
    return found


def test_a_classifier_of_texts_needs_no_question() -> None:
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"1": "good", "0": "bad"},
        "max_position_embeddings": 256,
    }
    folder = a_folder("Movie reviews!", config, "model.safetensors")
    np.savez(folder / "texts.npz", input_ids=np.zeros((2, 4), np.int64))
    assert run(["init", str(folder)]) == 0
    found = written()
    model = found.model.spec.model
    assert (found.model.metadata.name, model.format, model.classes) == ("movie-reviews", "huggingface", ("bad", "good"))
    assert [(one.name, one.shape, one.max_size) for one in model.inputs] == [
        ("input_ids", (-1,), 256),
        ("attention_mask", (-1,), 256),
    ]
    assert found.bootstrap_data == (folder / "texts.npz").resolve()
    assert found.source == folder.resolve()


def test_a_classifier_of_images_takes_its_size_from_the_configuration() -> None:
    folder = a_folder("vit", {"architectures": ["ViTForImageClassification"], "image_size": 224}, "inputs.npz")
    assert run(["init", str(folder), "--budget", "0.02"]) == 0
    (one,) = written().model.spec.model.inputs
    assert (one.name, one.shape, written().model.spec.budget.accuracy_loss) == ("pixel_values", (3, 224, 224), 0.02)


def test_a_torch_model_is_told_by_options() -> None:
    folder = a_folder("net", None, "weights.safetensors", "inputs.npz")
    assert (
        run(["init", str(folder), "--entrypoint", "nets:load", "--input", "x:FP32:-1,8", "--input", "m:INT64:-1"]) == 0
    )
    model = written().model.spec.model
    assert (model.source, model.entrypoint) == ("weights.safetensors", "nets:load")
    assert [one.name for one in model.inputs] == ["x", "m"]


@pytest.mark.parametrize(
    ("config", "files", "argv", "words"),
    [
        (None, ("w.safetensors", "i.npz"), [], "say it by --entrypoint"),
        (None, ("w.safetensors", "i.npz"), ["--entrypoint", "a:b"], "say it by --input"),
        (None, ("w.safetensors",), ["--entrypoint", "a:b", "--input", "x:FP32:3"], "say it by --data"),
        (
            None,
            ("w.safetensors", "i.npz"),
            ["--entrypoint", "a:b", "--input", "x:FP33:3"],
            "must be NAME:DATATYPE:SHAPE",
        ),
        (None, ("w.safetensors", "i.npz"), ["--entrypoint", "a b", "--input", "x:FP32:3"], "entrypoint"),
        (None, ("pytorch_model.bin",), [], "pickles are not read"),
        (
            None,
            ("w.safetensors", "a.npz", "b.npz"),
            ["--entrypoint", "a:b", "--input", "x:FP32:3"],
            "it has a.npz, b.npz",
        ),
        (
            None,
            ("w.safetensors",),
            ["--entrypoint", "a:b", "--input", "x:FP32:3", "--data", "nowhere.npz"],
            "nowhere.npz is no file",
        ),
        ({"architectures": ["GPT2LMHeadModel"]}, (), [], "architectures is GPT2LMHeadModel"),
        ([1], (), [], "is no configuration of a model"),
        ({"id2label": {"first": "a"}}, (), [], "is no configuration of a model"),
    ],
)
def test_what_is_missing_or_wrong_is_named_and_nothing_is_written(
    config: Any, files: tuple[str, ...], argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_folder("it", config, *files)
    assert run(["init", str(folder), *argv]) == 2
    assert words in capsys.readouterr().err
    assert not (folder / "model.yaml").exists()


def test_a_document_that_is_there_stays(capsys: pytest.CaptureFixture[str]) -> None:
    path = a_folder("it", {}) / "model.yaml"
    path.write_text("mine")
    assert run(["init", "it"]) == 2
    assert "--force writes over it" in capsys.readouterr().err
    assert path.read_text() == "mine"
