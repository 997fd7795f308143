"""Debian packages that a tool needs and the machine lacks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

LOCKED_FOR_S = 120  # a fresh machine may be at its own updates


def search_path() -> str:
    """PATH, and where the tools of root lie, which dpkg insists on."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"


def has(program: str) -> bool:
    """Whether a program is there, for root too."""
    return shutil.which(program, path=search_path()) is not None


def install(packages: Sequence[str]) -> str:
    """Install packages, as root, with fresh lists if it does not work with those that are there.

    Returns why it failed; empty when they are installed.
    """
    answer = apt("--no-install-recommends", "install", *packages)
    if answer.returncode:
        apt("update")
        answer = apt("--no-install-recommends", "install", *packages)
    return f"apt-get install {' '.join(packages)} failed:\n{answer.stderr.strip()}" if answer.returncode else ""


def download(packages: Sequence[str], folder: Path) -> str:
    """Put the files of packages into a folder, and install nothing; why it failed, or nothing."""
    answer = apt("download", *packages, folder=folder)
    if answer.returncode:
        apt("update")
        answer = apt("download", *packages, folder=folder)
    return f"apt-get download {' '.join(packages)} failed:\n{answer.stderr.strip()}" if answer.returncode else ""


def apt(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run apt-get, which asks nothing and waits for who holds its lock."""
    command = ["apt-get", "--quiet", "--yes", "-o", f"DPkg::Lock::Timeout={LOCKED_FOR_S}", *arguments]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": search_path()}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
