"""Where images and what they are made of lie: outside the tree, so that checkouts share them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

SCRATCH = "scratch"
FIRST_GB, LATER_GB = 22, 3
"""Disk that all images take the first time, and what must be free when only code has changed."""


class ImageFailed(RuntimeError):
    """An image could not be made; the text says which, why, and what to do."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"images: {text}", file=sys.stderr, flush=True)


def root() -> Path:
    """Folder of everything that is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "apparate" / "images"


def check_room() -> None:
    """Raise ImageFailed when there is too little room for a build, before it begins."""
    root().mkdir(parents=True, exist_ok=True)
    needed = LATER_GB if any((root() / "archives").glob("apparate-worker-dependencies-*.tar")) else FIRST_GB
    free = shutil.disk_usage(root()).free / 1e9
    if free < needed:
        raise ImageFailed(
            f"{root()} has {free:.1f} GB free, a build needs {needed} GB: make room, or set XDG_CACHE_HOME; "
            f"rm -r {root()} gives back what older builds left"
        )


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait for other builds of this machine, and remove what one left that was killed."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another build on this machine")
            fcntl.flock(lock, fcntl.LOCK_EX)
        scratch = root() / SCRATCH
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
