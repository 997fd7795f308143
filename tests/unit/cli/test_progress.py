"""What is told of work that takes its time: at a terminal, and nowhere else."""

from __future__ import annotations

import io
import os
import pty
import sys

import pytest

from apparate.cli.progress import working


def test_elsewhere_than_at_a_terminal_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with working("looking") as tell:
        tell("still looking")
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]


def test_at_a_terminal_it_is_told_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        with working("looking at [all] of it"):
            pass
        shown = os.read(screen, 65_536).decode()
    os.close(screen)
    assert "looking at [all] of it" in shown
