"""`apparate check`: what is wrong is found before anything is prepared, each thing by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from apparate.cli.main import run
from apparate.contract.document import load_documents
from apparate_worker.prepare import prepare
from support.nets import IMAGE, Residual, Single, pixels, seeded, write_model
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


def test_each_check_names_the_field_that_it_is_about(document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "-f", str(changed(document, source="nowhere.safetensors")), "-o", "json"]) == 2
    found = {one["check"]: one["field"] for one in json.loads(capsys.readouterr().out)}
    assert (found["data"], found["model"]) == ("spec.bootstrap.data", "spec.model.source")


def test_what_has_changed_since_a_model_was_prepared_is_told_field_by_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(tmp_path, seeded(Residual()), {"pixels": pixels(96)}, [IMAGE]).base / "model.yaml"
    prepare(load_documents(path)[0])

    def told() -> dict[str, str]:
        assert run(["check", "-f", str(path), "-o", "json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        return {one["field"]: one["told"] for one in rows if one["check"] == "prepared"}

    (unchanged,) = told().values()
    assert unchanged.endswith(f"ramps in {tmp_path}/prepared/default/small")
    content = yaml.safe_load(path.read_text())
    content["spec"]["serving"]["maxBatch"] = 3
    content["spec"]["serving"]["maxQueue"] = 7  # changes nothing of what is prepared
    content["spec"]["model"]["classes"] = ["a", "b", "c", "d"]
    content["spec"]["budget"] = {"rampOverhead": 0.25}
    path.write_text(yaml.safe_dump(content))
    np.savez(tmp_path / "data.npz", pixels=pixels(96, seed=1))
    found = told()
    assert set(found) == {
        "spec.serving.maxBatch",
        "spec.model.classes",
        "spec.budget.rampOverhead",
        "spec.bootstrap.data",
    }
    assert found["spec.serving.maxBatch"].startswith("2 -> 3: prepared anew")
    assert found["spec.bootstrap.data"].startswith("other content, SHA-256 ")


def test_a_model_without_a_place_for_a_ramp_is_told_by_check_and_by_prepare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = write_model(tmp_path, seeded(Single()), {"pixels": pixels(96)}, [IMAGE])
    path = str(tmp_path / "model.yaml")
    assert run(["check", "-f", path, "-o", "json"]) == 2
    verdict, told = verdicts(capsys)["sites"]
    assert (verdict, "no place for a ramp" in told) == ("wrong", True)
    assert run(["prepare", "-f", path]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: small: the model has no place for a ramp: ") and "by another server" in last
    assert not document.prepared.exists()


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
