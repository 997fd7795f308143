"""What signals do before a process has got so far as to handle them itself."""

from __future__ import annotations

import os
import signal


def end_on_sigterm() -> None:
    """Have SIGTERM end the process at once, until somebody sets another handler.

    The first process of a container has no default action: a worker that is still loading its model would hear nothing,
    and be killed only when its grace is over.
    """
    signal.signal(signal.SIGTERM, lambda number, _: os._exit(128 + number))
