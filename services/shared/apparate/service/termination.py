"""The reason of a process's end, where Kubernetes looks for it; the operator shows it in the condition."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

LOG = Path("/dev/termination-log")
MESSAGE_BYTES = 1900  # Kubernetes keeps 4096 of it all, and most that JSON escapes becomes two


def tell_end(path: Path, reason: str, message: str) -> None:
    """Write reason and sentence to the file that Kubernetes has made; outside of a pod there is none, nor is one made.

    Never raises OSError: the process ends anyhow.
    """
    short = message.encode()[:MESSAGE_BYTES].decode(errors="ignore")
    text = json.dumps({"reason": reason, "message": short}, ensure_ascii=False)
    with contextlib.suppress(OSError), path.open("r+", encoding="utf-8") as file:
        file.truncate()
        file.write(text)
