"""A temporary folder that belongs to a process: gone with it, and when that was killed, removed by the next one.

Whoever has such a folder holds a lock on a file in it. The kernel lets go of the lock when the process ends, however it
ends, so a lock that can be had says that nobody uses the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

LOCK = ".in-use"


class RuntimeFolder:
    """A new folder that only this user may read, in use until `cleanup` or the end of the process."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        fresh = self.path / f"{LOCK}.new"
        lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh.rename(self.path / LOCK)  # it has its name only when it is locked, so nobody finds it without
        self._remove = weakref.finalize(self, _remove, self.path, lock)

    def cleanup(self) -> None:
        """Remove it with everything in it. Safe to call twice; done by itself when Python ends."""
        self._remove()


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def remove_abandoned(prefix: str) -> list[Path]:
    """Remove the folders of that prefix whose process is gone, of this user only; which they were.

    A folder without a lock file is left alone: it is being made at this moment, or somebody else's.
    """
    removed = []
    for found in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):  # in use, another user's, or gone meanwhile
            about = found.lstat()
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
                continue
            lock = os.open(found / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(found, ignore_errors=True)
                removed.append(found)
            finally:
                os.close(lock)
    return removed
