"""Rules that hold for the whole repository: packaging, import law, lock file, descriptions, metric names."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from apparate.contract.conditions import Reason
from apparate.contract.metrics import METRICS, Metric
from apparate.contract.resource import EarlyExitModel

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "requirements.lock").read_text()
REGISTRY = re.compile(
    r"(py" + r"pi\.org|python" + r"hosted\.org|registry\.npm" + r"js|crates\.io/api|proxy\.golang|--(extra-)?index-url)"
)


def tracked(*suffixes: str) -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and (not suffixes or name.endswith(suffixes)):
            yield ROOT / name


@pytest.mark.parametrize("folder", ["operator", "services", "proto", "charts", "tests", "tools"])
def test_no_folder_at_the_root_is_a_package(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()  # `operator` would shadow the standard library's


def test_the_import_law_is_kept() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([lint, "--no-logo"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_every_direct_dependency_is_pinned() -> None:
    pinned = {name.lower() for name in re.findall(r"^([A-Za-z0-9._-]+)==", LOCK, re.MULTILINE)}
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    direct = {re.match(r"[A-Za-z0-9._-]+", one)[0].lower() for group in groups for one in group}  # type: ignore[index]
    assert direct - pinned - {"apparate"} == set(), "run `make lock`"


def test_every_pin_has_hashes() -> None:
    pins = re.split(r"^(?=[A-Za-z0-9._-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert [pin.splitlines()[0] for pin in pins if "--hash=sha256:" not in pin] == []


def test_no_file_names_the_host_of_a_package_registry() -> None:
    texts = (".py", ".md", ".toml", ".lock", ".sh", ".txt", ".yaml", ".json", "Makefile", "run", ".cfg")
    found = [str(p.relative_to(ROOT)) for p in tracked(*texts) if REGISTRY.search(p.read_text(errors="replace"))]
    assert found == []


def shapes(root: Any = EarlyExitModel) -> set[type[BaseModel]]:
    """Every shape of the document."""
    if isinstance(root, type) and issubclass(root, BaseModel):
        return {root}.union(*(shapes(field.annotation) for field in root.model_fields.values()))
    return set().union(*map(shapes, get_args(root)))


def test_every_field_of_the_document_has_a_description() -> None:
    silent = [f"{s.__name__}.{n}" for s in shapes() for n, f in s.model_fields.items() if not f.description]
    assert silent == []


def test_every_reason_of_a_condition_is_given_somewhere() -> None:
    rooms = [path for room in ("operator", "services") for path in (ROOT / room).rglob("*.py")]
    code = "\n".join(path.read_text() for path in rooms if path.name != "conditions.py" or "operator" in path.parts)
    assert [reason for reason in Reason if not re.search(rf"Reason\.{reason.name}\b", code)] == []


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: m.name)
def test_metric_names_follow_the_rule(metric: Metric) -> None:
    assert re.fullmatch(r"apparate_[a-z0-9]+(_[a-z0-9]+)*", metric.name)
    assert not metric.name.endswith(("_total", "_ms", "_milliseconds", "_percent", "_kb", "_mb"))  # base units only
    assert metric.help.endswith(".") or metric.help, metric.name
    assert bool(metric.buckets) == (metric.kind == "histogram")


def test_every_make_target_has_a_help_line() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())  # type: ignore[index]
    assert phony == set(re.findall(r"^([a-z0-9-]+):[^\n]*## ", makefile, re.MULTILINE))
