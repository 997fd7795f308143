"""The entrypoint's own code is part of what a model is made of, where it can be seen."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from apparate.cli.main import run
from apparate.contract.document import Document, load_documents
from apparate_worker.model.store import load_prepared, publish, read_catalog
from apparate_worker.prepare import prepare
from apparate_worker.prepare.code import own_code
from apparate_worker.prepare.inputs import is_made_of, made_of
from support.nets import CPU, IMAGE, Residual, pixels, seeded, write_model


def a_document(folder: Path, entrypoint: str = "") -> Document:
    """A model's document; with another entrypoint than the one that is written beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    document = write_model(folder, seeded(Residual()), {"pixels": pixels(96)}, [IMAGE])
    return with_entrypoint(document, entrypoint) if entrypoint else document


def with_entrypoint(document: Document, entrypoint: str) -> Document:
    spec = document.model.spec
    model = spec.model.model_copy(update={"entrypoint": entrypoint})
    return replace(document, model=document.model.model_copy(update={"spec": spec.model_copy(update={"model": model})}))


def write(folder: Path, **files: str) -> None:
    """Python files by name; a double underscore is a folder."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rows(path: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run(["check", "-f", str(path), "-o", "json"]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return [one for one in found if one["check"] == "prepared"]


def test_the_modules_that_the_entrypoint_imports_from_its_folder_are_seen_and_no_others(tmp_path: Path) -> None:
    document = a_document(tmp_path, "seen_net.main:load")
    write(
        tmp_path,
        seen_net__main="import json, torch\nfrom . import blocks\nfrom seen_other import thing\n",
        seen_net__blocks="def late():\n    from .deep.er import layer\n    import seen_lazy.part\n",
        seen_net__deep__er="from ..blocks import late\n",
        seen_net__unused="",
        seen_other="this is no Python (",
        seen_lazy__part="",
        seen_unused="",
    )
    (tmp_path / "seen_net" / "__init__.py").write_text("")
    assert list(own_code(document)) == [
        "seen_lazy/part.py",
        "seen_net/__init__.py",
        "seen_net/blocks.py",
        "seen_net/deep/er.py",
        "seen_net/main.py",
        "seen_other.py",
    ]


def test_the_same_code_in_another_folder_is_the_same(tmp_path: Path) -> None:
    found = []
    for name in ("job", "laptop"):
        document = a_document(tmp_path / name, "moved_net:load")
        write(tmp_path / name, moved_net="import moved_blocks\n", moved_blocks="")
        found.append(own_code(replace(document, base=tmp_path / name)))
    assert found[0] == found[1] != {}


@pytest.mark.parametrize("entrypoint", ["torch.nn:Linear", "nowhere_to_be_found:load"])
def test_the_code_of_packages_and_of_what_is_not_found_is_not_known(tmp_path: Path, entrypoint: str) -> None:
    assert own_code(a_document(tmp_path, entrypoint)) == {}


def test_changed_code_is_named_by_check_and_prepared_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = a_document(tmp_path)
    path = tmp_path / "model.yaml"
    (code,) = tmp_path.glob("entry_*.py")
    before = prepare(document)
    assert [one["verdict"] for one in rows(path, capsys)] == ["ok"]

    code.write_text(code.read_text().replace("    return model", "    model.requires_grad_(False)\n    return model"))
    assert "requires_grad_" in code.read_text()
    (row,) = rows(path, capsys)
    assert (row["verdict"], row["field"]) == ("note", "spec.model.entrypoint")
    assert row["told"].startswith(f"{code.name} changed: prepared anew")
    load_prepared(document.prepared, document, CPU)  # who serves it never looks at code

    told: list[str] = []
    after = prepare(document, progress=lambda step: told.append(step.message))
    assert not any("prepared already" in one for one in told)
    assert after.extra["made_of"]["code"] != before.extra["made_of"]["code"]
    prepare(document, progress=lambda step: told.append(step.message))
    assert "prepared already" in told[-1]


def test_a_model_whose_code_was_not_recorded_stays_and_check_says_that_it_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = a_document(tmp_path)
    catalog = prepare(document)
    content = made_of(document, CPU)
    fields = {name: part for name, part in catalog.extra["made_of"].items() if name != "code"}
    partial = shutil.copytree(document.prepared, tmp_path / "partial")
    publish(partial, document.prepared, replace(catalog, extra={**catalog.extra, "made_of": fields}))
    assert is_made_of(read_catalog(document.prepared), content)
    ok, unknown = rows(tmp_path / "model.yaml", capsys)
    assert (ok["verdict"], unknown["field"]) == ("ok", "spec.model.entrypoint")
    assert "is not known" in unknown["told"]


def test_a_prepared_model_stays_where_its_code_is_gone(tmp_path: Path) -> None:
    document = a_document(tmp_path)
    prepare(document)
    for code in tmp_path.glob("entry_*.py"):
        code.unlink()
    command = [sys.executable, "-m", "apparate.cli", "prepare", "-f", str(tmp_path / "model.yaml")]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=100, cwd=tmp_path)
    assert "prepared already" in told.stderr


def test_a_ramp_budget_that_no_ramp_fits_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path, seeded(Residual()), {"pixels": pixels(96)}, [IMAGE], budget={"rampOverhead": 0.0})
    path = tmp_path / "model.yaml"
    assert run(["prepare", "-f", str(path)]) == 0
    (warning,) = [
        one["warning"] for line in capsys.readouterr().err.splitlines() if "warning" in (one := json.loads(line))
    ]
    assert warning.startswith("nothing will exit early: ")
    assert run(["check", "-f", str(path), "-o", "json"]) == 0
    found = {one["field"]: one["told"] for one in json.loads(capsys.readouterr().out) if one["check"] == "ramps"}
    assert found == {"spec.budget.rampOverhead": warning}
    assert load_documents(path)[0].prepared.is_dir()
