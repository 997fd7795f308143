"""A worker as a process of its own, on free ports of loopback."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from support.eventually import eventually
from support.processes import Process

COMMAND = [sys.executable, "-m", "apparate_worker"]
START_S = 60.0


def environ(folder: Path, **other: str) -> dict[str, str]:
    """Settings of a worker that serves what `support.models.write_prepared` has put into a folder."""
    values = {"DOCUMENT": str(folder / "tiny.yaml"), "HTTP_PORT": "0", "GRPC_PORT": "0", **other}
    return {f"EEM_WORKER_{name}": value for name, value in values.items()}


def ready(process: Process) -> dict[str, Any]:
    """What a worker says once it takes requests: its name, and its addresses by protocol."""

    def said() -> list[str]:
        assert process.popen.poll() is None, process.err[-5:]
        return process.out

    told: dict[str, Any] = json.loads(eventually(said, within=START_S)[0])
    return told


def faults(process: Process) -> list[str]:
    """Lines that it logged as errors, and what is no log line at all, such as a traceback."""
    return [
        line for line in process.err if not line.startswith("{") or json.loads(line)["level"] in ("error", "critical")
    ]
