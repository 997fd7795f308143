"""The tutorial, word by word, as far as it goes without nodes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.kube import ROOT, ControlPlane

pytestmark = pytest.mark.cluster
PAGE = ROOT / "docs" / "tutorials" / "kubernetes.md"
NEEDS_PODS = re.compile(r"^(docker|kind|helm test|kubectl (wait|exec|cp|port-forward|apparate)) ")


def commands(page: Path) -> list[str]:
    """Every line of the page's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


def test_every_command_that_needs_no_pod_works_in_its_order(own_control_plane: ControlPlane) -> None:
    ran = 0
    for command in commands(PAGE):
        if NEEDS_PODS.match(command):
            continue
        once = command.removesuffix(" --watch")  # a watch does not end
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", once],
            cwd=ROOT,
            env=own_control_plane.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{once}\n{done.stdout}{done.stderr}"
        ran += 1
    assert ran >= 12
