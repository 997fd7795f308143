"""A control plane in the foreground: `python -m apparate_cluster [--folder DIR] [--leash]`.

Says how to use it when it is ready, and stops everything when it is told to end (Ctrl-C, SIGTERM) or when a process
of it dies. With --leash it is held by another program: it prints one JSON line {"url", "kubeconfig", "pids"} and also
stops when its standard input closes, as it does when that program is killed.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from .binaries import KUBERNETES
from .control_plane import ControlPlane

LOOK_S = 0.5


class Stopped(BaseException):
    """The process was asked to end."""


def main() -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="apparate_cluster", description=__doc__)
    parser.add_argument("--folder", type=Path, help="where data, logs and kubeconfig go; without: a temporary one")
    parser.add_argument("--leash", action="store_true", help="stop when standard input closes")
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    plane = ControlPlane((asked.folder or Path(tempfile.mkdtemp(prefix="apparate-cluster-"))).resolve())
    try:
        plane.start()
        print(_as_json(plane) if asked.leash else _as_text(plane), flush=True)
        _stay(plane, leash=asked.leash)
    except Stopped:
        return 0
    except (RuntimeError, TimeoutError) as error:
        print(f"control plane: {error}", file=sys.stderr)
        return 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the end is under way
        plane.stop()
        plane.clean()
    return 0


def _stay(plane: ControlPlane, *, leash: bool) -> None:
    while True:
        ready, _, _ = select.select([sys.stdin] if leash else [], [], [], LOOK_S)
        if ready and not os.read(sys.stdin.fileno(), 1024):
            return
        plane.check()


def _as_json(plane: ControlPlane) -> str:
    pids = {child.name: child.popen.pid for child in plane.children}
    return json.dumps({"url": plane.url, "kubeconfig": str(plane.kubeconfig), "pids": pids})


def _as_text(plane: ControlPlane) -> str:
    return f"""Kubernetes {KUBERNETES} is ready at {plane.url} until Ctrl-C. In another shell:
  export KUBECONFIG={plane.kubeconfig}
Logs are in {plane.folder}"""


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


if __name__ == "__main__":
    sys.exit(main())
