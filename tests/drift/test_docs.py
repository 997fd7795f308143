"""The documentation: its site builds with every link found, and what it shows is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\[[^\]]*\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def test_the_site_builds_and_each_of_its_links_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, "\n".join(line for line in done.stderr.splitlines() if "WARNING" in line)
    assert "fonts.googleapis" not in (tmp_path / "site" / "index.html").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_files_of_a_checkout_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text())
    broken = [target for target in LINK.findall(text) if not (page.parent / target).exists()]
    assert broken == []


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    told = (ROOT / "mkdocs.yml").read_text()
    pages = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    lost = [page for page in pages if page not in told and not page.startswith("runbooks/Apparate")]
    assert lost == []
