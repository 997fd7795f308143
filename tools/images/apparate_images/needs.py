"""Debian packages that making images without an engine needs."""

from __future__ import annotations

import os
import shutil
import subprocess

from .place import ImageFailed, say

PROGRAMS = {"buildah": "buildah", "debootstrap": "debootstrap", "skopeo": "skopeo", "unshare": "util-linux"}
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def missing() -> list[str]:
    """Packages whose program is not here."""
    return [package for program, package in PROGRAMS.items() if not shutil.which(program, path=PATH)]


def install() -> None:
    """Install them, as root on Debian. Raises ImageFailed elsewhere."""
    if os.geteuid() != 0:
        raise ImageFailed("no container engine answers here; to make images without one: sudo make images (on Debian)")
    lacking = missing()
    if not lacking:
        return
    if not shutil.which("apt-get"):
        raise ImageFailed(
            f"no container engine answers here, nor is there {', '.join(lacking)}: start docker or podman"
        )
    say(f"installing Debian packages: {' '.join(lacking)}")
    command = ["apt-get", "--quiet", "--yes", "--no-install-recommends", "install", *lacking]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for attempt in (command, ["apt-get", "--quiet", "update"], command):
        done = subprocess.run(attempt, env=environ, capture_output=True, text=True, check=False)
        if attempt is command and done.returncode == 0:
            return
    raise ImageFailed(f"apt-get install {' '.join(lacking)} failed:\n{done.stderr.strip()}")
