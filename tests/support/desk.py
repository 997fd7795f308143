"""A folder to work in as the pages of the documentation have it, and their blocks executed there, in this process.

A process for each command would import torch for seconds. That the program itself runs is the quickstart's test.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from apparate.cli.main import run
from support.pages import SHELL, Block, to_run

SERVE = "apparate serve"
CLIENTS_PORT = "127.0.0.1:8080"
"""What pages have for the worker's address."""


class Desk:
    """A folder with what a page takes for granted; `said` has what its commands printed, in order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)

    def before_serving(self, page: str) -> Path:
        """Execute a page up to its `apparate serve`; the document that it serves."""
        before, (served, *_) = self._parted(page)
        self.execute(before)
        words = shlex.split(served.text.strip())
        assert words[:3] == [*SERVE.split(), "-f"], served.text
        return self.folder / words[3]

    def after_serving(self, page: str, worker: str) -> str:
        """Execute the rest of it, with the worker at that address; what was printed."""
        _, (_, *after) = self._parted(page)
        before = len(self.said)
        self.execute(after, lambda text: text.replace(CLIENTS_PORT, worker))
        return "".join(self.said[before:])

    @staticmethod
    def _parted(page: str) -> tuple[list[Block], list[Block]]:
        found = to_run(page)
        at = next(i for i, one in enumerate(found) if one.language in SHELL and one.text.startswith(SERVE))
        return found[:at], found[at:]

    def execute(self, found: list[Block], change: Callable[[str], str] = str) -> None:
        """Each block in its order."""
        for one in found:
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
                if one.language == "python":
                    exec(compile(change(one.run), one.place, "exec"), {"__name__": "__main__"})
                else:
                    for line in (line for line in one.lines if not one.left_out(line)):
                        self._line(change(line), one)
            self.said.append(out.getvalue())

    @staticmethod
    def _line(line: str, block: Block) -> None:
        words = shlex.split(line, comments=True)
        if words[0] == "apparate":
            status = run(words[1:])
            assert status == 0, f"{block.place}: {line}: status {status}"
            return
        done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{block.place}: {line}: {done.stderr}"
        print(done.stdout)
