"""The cgroup of one cluster, in every hierarchy of the machine (version 1 has several, version 2 one)."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

REMOVED_WITHIN_S = 10.0  # the kernel lets go of a killed process a moment after its death


def hierarchies() -> list[Path]:
    """Where cgroup file systems are mounted."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if source.split()[0] in ("cgroup", "cgroup2"):
            found.append(Path(mount.split()[4]))
    return found


def make(name: str) -> None:
    """Make the cgroup: the kubelet wants it there before it starts."""
    for root in hierarchies():
        if (root / "cgroup.subtree_control").exists():
            _hand_down(root)
        folder = root / name.lstrip("/")
        folder.mkdir(exist_ok=True)
        for needed in ("cpuset.mems", "cpuset.cpus"):  # in version 1 a new cpuset is empty, and no process may join
            if (folder / needed).exists() and (root / "cgroup.clone_children").exists():
                (folder / needed).write_text((root / needed).read_text())


def _hand_down(root: Path) -> None:
    for controller in (root / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):  # one that cannot be had is missed by name later, by the kubelet
            (root / "cgroup.subtree_control").write_text(f"+{controller}")


def remove(name: str) -> None:
    """Remove the cgroup and all below it, whose processes are dead. Raises OSError when one still lives."""
    deadline = time.monotonic() + REMOVED_WITHIN_S
    for top in [root / name.lstrip("/") for root in hierarchies()]:
        while top.exists():
            try:
                for folder, _, _ in os.walk(top, topdown=False):
                    Path(folder).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
