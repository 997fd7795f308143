"""A real Chromium: the machine's own, or Debian's, which is installed where it may be."""

from __future__ import annotations

import os
import shutil
from functools import cache

from apparate_cluster import debian

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core")


@cache
def missing() -> str:
    """Why there is no browser; empty when there is one now."""
    if program() is not None:
        return ""
    if os.geteuid() or not debian.has("apt-get"):
        return f"no {' or '.join(PROGRAMS)} on PATH, and no right to install Debian's"
    return debian.install(PACKAGES)


def program() -> str | None:
    """Path of the browser."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)
