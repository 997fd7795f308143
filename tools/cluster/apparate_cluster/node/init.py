"""The first process of the namespaces: starts the supervisor, buries orphans, and ends when the supervisor does."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

from . import supervisor


def main() -> int:
    """Status of the supervisor; the kernel ends all other processes of the namespace with this one."""
    child = os.fork()
    if child == 0:
        os._exit(supervisor.main())

    def pass_on(number: int, _: FrameType | None) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
