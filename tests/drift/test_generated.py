"""Every generated file is what `make generate` would write."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools" / "dev"


def load(name: str) -> ModuleType:
    sys.path.insert(0, str(TOOLS))
    try:
        spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(TOOLS))


EVERYTHING = ["wire", "resource", "crd", "settings", "metrics", "inference_protocol", "command_line", "site"]


@pytest.fixture
def rendered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.syspath_prepend(str(TOOLS))
    return getattr(load("generate"), request.param)()  # type: ignore[no-any-return]


@pytest.mark.parametrize("rendered", EVERYTHING, indirect=True)
def test_generated_files_are_what_the_code_says(rendered: dict[str, str]) -> None:
    stale = [n for n, text in rendered.items() if not (ROOT / n).exists() or (ROOT / n).read_text() != text]
    assert not stale, "run `make generate` and commit"


def test_no_generated_page_has_lost_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    generate = load("generate")
    made = {name for render in generate.RENDERERS for name in render()}
    pages = (ROOT / "docs" / "reference").glob("*.md")
    generated = {str(p.relative_to(ROOT)) for p in pages if p.read_text().startswith("<!-- Generated")}
    assert generated <= made
