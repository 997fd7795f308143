"""Debian packages that making images without an engine needs."""

from __future__ import annotations

import os
import shutil
import subprocess

from .place import ImageFailed, say

PROGRAMS = {"buildah": "buildah", "debootstrap": "debootstrap", "skopeo": "skopeo", "unshare": "util-linux"}
LOCKED_FOR_S = 120  # a fresh machine may be at its own updates
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
        _have_lists()
        return
    if not shutil.which("apt-get"):
        raise ImageFailed(
            f"no container engine answers here, nor is there {', '.join(lacking)}: start docker or podman"
        )
    say(f"installing Debian packages: {' '.join(lacking)}")
    for _ in range(2):
        done = _apt("--yes", "--no-install-recommends", "install", *lacking)
        if done.returncode == 0:
            _have_lists()
            return
        _apt("update")
    raise ImageFailed(f"apt-get install {' '.join(lacking)} failed:\n{done.stderr.strip()}")


def _have_lists() -> None:
    """Have apt's lists, without which it names no mirror; images of machines often come without."""
    if shutil.which("apt-get") and not _apt("indextargets").stdout.strip():
        _apt("update")


def _apt(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["apt-get", "--quiet", "-o", f"DPkg::Lock::Timeout={LOCKED_FOR_S}", *arguments]
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PATH": PATH}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
