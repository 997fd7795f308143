"""Completion: the script that is printed, in a real bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apparate.cli.main import run


def completed(typed: str, tmp_path: Path) -> list[str]:
    """What bash offers after `typed`."""
    program = tmp_path / "apparate"
    program.write_text(f"#!{sys.executable}\nfrom apparate.cli.main import main\nmain()\n")
    program.chmod(0o755)
    words = typed.split(" ")
    script = (
        "source <(apparate completion bash); "
        f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; "
        "_apparate_completion apparate; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("apparate wh", ["what-if"]), ("apparate what-if --bud", ["--budget"]), ("apparate status -", ["--output"])],
)
def test_bash_completes_subcommands_and_their_options(typed: str, offered: list[str], tmp_path: Path) -> None:
    assert set(offered) <= set(completed(typed, tmp_path))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    assert "_APPARATE_COMPLETE" in capsys.readouterr().out
