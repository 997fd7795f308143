"""`apparate check`: what is wrong is found before anything is prepared, each thing by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from apparate.cli.main import run
from support.tiny import points, write_tiny_model


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


def changed(document: Path, **model: Any) -> Path:
    """The document with other fields of spec.model, beside it."""
    content = yaml.safe_load(document.read_text())
    content["spec"]["model"] |= model
    path = document.with_name("changed.yaml")
    path.write_text(yaml.safe_dump(content))
    return path


def verdicts(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    return {one["check"]: (one["verdict"], one["told"]) for one in json.loads(capsys.readouterr().out)}


def test_a_document_that_is_fine_passes_every_check(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "-f", str(document), "-o", "json"]) == 0
    found = verdicts(capsys)
    assert [found[name][0] for name in ("data", "model", "answer", "sites")] == ["ok"] * 4
    assert found["answer"][1] == "3 class scores"
    assert found["prepared"][0] == "note"


@pytest.mark.parametrize(
    ("model", "check", "words"),
    [
        ({"source": "nowhere.safetensors"}, "model", "nowhere.safetensors does not exist"),
        ({"entrypoint": "tiny_network:nothing"}, "model", "tiny_network has no nothing"),
        ({"classes": ["a", "b"]}, "answer", "3 scores, spec.model.classes names 2 classes"),
        ({"inputs": [{"name": "x", "datatype": "FP32", "shape": [7]}]}, "data", "x"),
    ],
)
def test_what_is_wrong_is_named_and_the_rest_still_checked(
    document: Path, model: dict[str, Any], check: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["check", "-f", str(changed(document, **model)), "-o", "json"]) == 2
    verdict, told = verdicts(capsys)[check]
    assert (verdict, words in told) == ("wrong", True), told


def test_data_that_the_model_raises_on_is_told(
    document: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "wide.npz", x=np.repeat(points(100), 2, axis=1))
    content = yaml.safe_load(document.read_text())
    width = content["spec"]["model"]["inputs"][0]["shape"][0]
    content["spec"]["model"]["inputs"][0]["shape"] = [2 * width]
    content["spec"]["bootstrap"]["data"] = str(tmp_path / "wide.npz")
    path = document.with_name("wide.yaml")
    path.write_text(yaml.safe_dump(content))
    assert run(["check", "-f", str(path), "-o", "json"]) == 2
    assert "raises on the first 2 records" in verdicts(capsys)["answer"][1]


def test_a_source_elsewhere_is_skipped(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "-f", str(changed(document, source="s3://bucket/weights"))]) == 0
    assert "s3://bucket/weights cannot be read here" in capsys.readouterr().out
