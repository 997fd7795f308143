"""Child processes that never outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

PR_SET_PDEATHSIG = 1


def spawn(
    command: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    stdin: int | IO[Any] | None = subprocess.DEVNULL,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, so that a Ctrl-C on the terminal reaches only this process.

    On Linux the kernel kills the child when the thread that called `spawn` ends, also by a crash: call it from a
    thread that lives as long as the child should. Elsewhere the caller's own clean-up is all there is.
    """
    return subprocess.Popen(
        command,
        env=dict(environ) if environ is not None else None,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=_die_with(os.getpid()),
    )


def _die_with(parent: int) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: after the fork nothing may take a lock

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return in_child
