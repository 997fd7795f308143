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


class ImageFailed(RuntimeError):
    """An image could not be made; the text says which, why, and what to do."""


def say(text: str) -> None:
    """One line of progress."""
    print(f"images: {text}", file=sys.stderr, flush=True)


def root() -> Path:
    """Folder of everything that is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "apparate" / "images"


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
