"""Programs that tests need: the machine's own, or Debian's, which are installed where they may be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import cache

from apparate_cluster import debian

BROWSERS, COMPILERS = ("chromium", "chromium-browser", "google-chrome"), ("g++", "clang++")
BROWSER_PACKAGES, COMPILER_PACKAGES = ("chromium", "fonts-dejavu-core"), ("g++",)


@cache
def missing(names: tuple[str, ...], packages: tuple[str, ...]) -> str:
    """Why there is none of these programs, of which one is enough; empty when there is one now."""
    if path(names) is not None:
        return ""
    if os.geteuid() or not debian.has("apt-get"):
        return f"no {' or '.join(names)} on PATH, and no right to install Debian's"
    return debian.install(packages)


def path(names: Sequence[str]) -> str | None:
    """Path of the first that there is."""
    return next((found for name in names if (found := shutil.which(name))), None)
