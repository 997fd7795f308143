"""Pages of the documentation as tests see them: their blocks of code, and the commands inside sentences.

Every block of sh, bash, console or python is executed by the test that RUN_BY has for its page, but for what the
comment above it leaves out, which says why:

    <!-- not run: it needs a registry -->
    <!-- not run (kubectl exec, kubectl cp): there is no node -->    only the commands that begin so

What is left out is still read (`support.commands`): programs, subcommands, options and targets have to exist.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
PAGES += [ROOT / "charts" / "apparate" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = "tests/cluster/test_chart_tutorial.py"
RUN_BY = {
    "README.md": "tests/integration/test_docs_local.py",
    "charts/apparate/README.md": TUTORIALS,
    "docs/guides/text.md": "tests/integration/test_docs_local.py",
    "docs/guides/vision.md": "tests/integration/test_docs_local.py",
    "docs/local-mode.md": "tests/integration/test_docs_local.py",
    "docs/operations.md": "tests/integration/test_docs_local.py",
    "docs/prepare.md": "tests/integration/test_docs_local.py",
    "docs/quickstart.md": "tests/integration/test_quickstart.py",
    "docs/reference/recordings.md": "tests/integration/test_docs_local.py",
    "docs/tutorials/kubernetes.md": TUTORIALS,
    "docs/tutorials/one-node.md": TUTORIALS,
}
"""Page to the test that executes its blocks, all of them but what is marked."""

SHELL, CODE = ("sh", "bash", "console"), ("sh", "bash", "console", "python")
FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>not run[^\n]*?) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
MARK = re.compile(r"not run(?: \((?P<only>[^)]+)\))?: (?P<reason>.+)")


@dataclass(frozen=True)
class Block:
    """A block of code in a page."""

    page: Path
    line: int
    language: str
    text: str
    reason: str = ""
    """Why it, or a part of it, is not executed; empty when all of it is."""
    only: tuple[str, ...] = ()
    """How the commands begin that are not; none with a reason: the whole block."""

    @property
    def place(self) -> str:
        """Page and line, for people."""
        return f"{name(self.page)}:{self.line}"

    @property
    def lines(self) -> list[str]:
        """Its commands, without prompts, comments and empty lines."""
        stripped = (line.removeprefix("$ ") for line in self.text.splitlines())
        return [line for line in stripped if line.strip() and not line.startswith("#")]

    def left_out(self, line: str) -> bool:
        """Whether a command of it is not executed."""
        return bool(self.reason) and (not self.only or line.startswith(self.only))

    @property
    def run(self) -> str:
        """What is executed of it; empty when nothing is."""
        if self.reason and not self.only:
            return ""
        return "\n".join(line for line in self.text.splitlines() if not self.left_out(line)) + "\n"


def name(page: Path) -> str:
    """A page as people call it: its path in the project."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Every block of a page, in order. Raises ValueError for a mark without a reason."""
    text = page.read_text()
    return [_block(page, text[: found.start("text")].count("\n"), found) for found in FENCE.finditer(text)]


def _block(page: Path, line: int, found: re.Match[str]) -> Block:
    code = textwrap.dedent(found["text"])
    if not found["mark"]:
        return Block(page, line, found["language"], code)
    mark = MARK.fullmatch(found["mark"])
    if mark is None:
        raise ValueError(f"{name(page)}:{line}: the mark is {found['mark']!r}, must be {MARK.pattern}")
    only = tuple(part.strip() for part in (mark["only"] or "").split(",") if part.strip())
    return Block(page, line, found["language"], code, mark["reason"], only)


def to_run(page: str, *languages: str) -> list[Block]:
    """The blocks of a page that its test executes, wholly or in part; of all languages, or of these."""
    assert page in RUN_BY, f"{page} is not in RUN_BY"
    wanted = languages or CODE
    return [one for one in blocks(ROOT / page) if one.language in wanted and one.run.strip()]


def lines_to_run(page: str) -> list[str]:
    """The commands of a page's shell blocks that its test executes, in order."""
    return [line for one in to_run(page, *SHELL) for line in one.lines if not one.left_out(line)]


def spans(page: Path) -> Iterator[str]:
    """Code inside the sentences of a page, on one line each."""
    prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for found in re.finditer(r"(`+)(.+?)\1", prose, re.DOTALL):
        yield re.sub(r"\s*\n\s*", " ", found[2])
