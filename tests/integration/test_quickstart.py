"""The quickstart's own commands, in order, in one shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import to_run

PAGE = "docs/quickstart.md"

pytestmark = [pytest.mark.redis, pytest.mark.timeout(300)]


def own_network() -> list[str]:
    """Its ports are the defaults, which somebody may use here: as root it gets a network of its own."""
    return ["unshare", "--net", "--", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"] if os.geteuid() == 0 else []


def test_every_command_of_the_quickstart_does_what_it_says(tmp_path: Path) -> None:
    blocks = [block.run for block in to_run(PAGE, "bash")]
    assert len(blocks) >= 5
    script = "set -euo pipefail\ntrap 'kill -INT $(jobs -p) 2>/dev/null || true' EXIT\nset -m\n" + "\n".join(blocks)
    bin_folder = Path(sys.executable).parent
    environ = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [*own_network(), "bash", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    said = done.stdout
    wanted = ("wrote model.yaml", "class scores", "Ctrl-C drains", "throughput_rps", "default/hello", "in window.npz")
    assert [text for text in wanted if text not in said] == []
    assert re.search(r"left at \d", said), "no answer left early"
