"""Debian packages that making images without an engine needs."""

from __future__ import annotations

import os

from apparate_cluster import debian

from .place import ImageFailed, say

PROGRAMS = {"buildah": "buildah", "debootstrap": "debootstrap", "skopeo": "skopeo", "unshare": "util-linux"}


def missing() -> list[str]:
    """Packages whose program is not here."""
    return [package for program, package in PROGRAMS.items() if not debian.has(program)]


def install() -> None:
    """Install them, as root on Debian. Raises ImageFailed elsewhere."""
    if os.geteuid() != 0:
        raise ImageFailed("no container engine answers here; to make images without one: sudo make images (on Debian)")
    if lacking := missing():
        if not debian.has("apt-get"):
            raise ImageFailed(
                f"no container engine answers here, nor is there {', '.join(lacking)}: start docker or podman"
            )
        say(f"installing Debian packages: {' '.join(lacking)}")
        if failed := debian.install(lacking):
            raise ImageFailed(failed)
    _have_lists()


def _have_lists() -> None:
    """Have apt's lists, without which it names no mirror; images of machines often come without."""
    if debian.has("apt-get") and not debian.apt("indextargets").stdout.strip():
        debian.apt("update")
