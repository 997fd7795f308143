"""The documentation: its site builds, each link and heading is there, each page is found, each document is valid."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from apparate.contract.document import parse_documents
from support.pages import PAGES, ROOT, blocks, name

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)(?: \"[^\"]*\")?\)")
MENTION = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|png|svg|yaml|json)(?:#[\w-]+)?")


def test_the_site_builds_and_each_of_its_links_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "WARNING" in line)
    pages = {path: path.read_text() for path in (tmp_path / "site").rglob("*.html")}
    assert len(pages) > 40
    assert [path for path, text in pages.items() if "fonts.googleapis" in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    assert [link for link in LINK.findall(prose(page)) if not leads_somewhere(page, link)] == []


def test_every_page_that_code_charts_and_alerts_name_is_there() -> None:
    lost = []
    for path in tracked("operator", "services", "charts", "tools", "examples", "proto", "Makefile", "pyproject.toml"):
        found = MENTION.findall(path.read_text(errors="replace")) if path.suffix not in (".mp4", ".safetensors") else []
        lost += [(name(path), one) for one in found if not leads_somewhere(ROOT / "README.md", one)]
    assert lost == []


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    told = (ROOT / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    lost = [page for page in pages if page not in told and not page.startswith("runbooks/Apparate")]
    assert lost == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page.is_dir():
            todo += page.glob("*.md")
        elif page.suffix == ".md" and page not in reached:
            reached.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose(page))]
    pages = {page for page in tracked("docs") if page.suffix == ".md"}
    assert [name(page) for page in sorted(pages - reached)] == []


def test_every_picture_of_the_docs_is_shown_or_linked_somewhere() -> None:
    told = "".join(page.read_text() for page in PAGES)
    pictures = [path for path in tracked("docs") if path.suffix in (".png", ".svg")]
    assert pictures
    assert [name(path) for path in pictures if path.name not in told] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_document_in_the_docs_is_valid(page: Path) -> None:
    for text in documents(page):
        assert parse_documents(text, origin=page.name, base=ROOT)


def test_the_readme_has_a_document() -> None:
    assert documents(ROOT / "README.md")


def test_figures_of_the_comparison_are_those_of_the_benchmark() -> None:
    """Both come from one run: who measures again writes the comparison anew."""
    told = (ROOT / "docs/comparison.md").read_text().partition("## In figures")[2]
    figures = re.findall(r"\b\d{1,3}(?:,\d{3})+\b|(?<=\| )\d+(?= \|)", told)
    measured = set(re.findall(r"[\d,]+", (ROOT / "docs/benchmarks/serving.md").read_text()))
    assert len(figures) > 15
    assert [one for one in figures if one not in measured] == []


def documents(page: Path) -> list[str]:
    """The EarlyExitModels of a page."""
    return [one.text for one in blocks(page) if one.language == "yaml" and "kind: EarlyExitModel" in one.text]


def tracked(*places: str) -> Iterator[Path]:
    """Files of the project in these folders."""
    command = ["git", "ls-files", "-z", "--", *places]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    yield from (ROOT / one for one in listed.split("\0") if one and (ROOT / one).is_file())


def prose(page: Path) -> str:
    """A page without its code."""
    return re.sub(r"```.*?```|`[^`\n]+`", "", page.read_text(), flags=re.DOTALL)


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a link's file is there, and the heading in it when the link names one."""
    file, _, heading = unquote(link).partition("#")
    target = (page.parent / file) if file else page
    return target.exists() and (not heading or heading in headings(target))


def headings(page: Path) -> set[str]:
    """What links may name in a page: its headings, in small letters, words joined by hyphens."""
    lines = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}
