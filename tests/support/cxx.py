"""A real C++ compiler: the machine's own, or Debian's, which is installed where it may be."""

from __future__ import annotations

import os
import shutil
from functools import cache

from apparate_cluster import debian

PROGRAMS = ("g++", "clang++")


@cache
def missing() -> str:
    """Why there is no compiler; empty when there is one now."""
    if any(shutil.which(name) for name in PROGRAMS):
        return ""
    if os.geteuid() or not debian.has("apt-get"):
        return f"no {' or '.join(PROGRAMS)} on PATH, and no right to install Debian's"
    return debian.install(["g++"])
