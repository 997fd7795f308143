"""Places of the namespace's own, so that nothing is written where the host would see it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .folder import Folder

# Settings of the whole kernel, as the kubelet wants them. It would write them where it finds others; here it reads them
# from files that lie over the kernel's. None matters to a cluster for tests.
KERNEL = {
    "kernel/keys/root_maxbytes": "25000000",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
}


def make(folder: Folder) -> None:
    """Mount them. Raises RuntimeError with what `mount` said."""
    _mount("--make-rshared", "/")  # the kubelet's wish, for mounts that pods share
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _mount("--bind", folder.work / "lib", "/var/lib")
    _mount("--bind", folder.log / "system", "/var/log")
    for name, value in KERNEL.items():
        stand_in = folder.work / "kernel" / name
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(f"{value}\n")
        _mount("--bind", stand_in, Path("/proc/sys") / name)


def _mount(*arguments: str | Path) -> None:
    answer = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"mount {' '.join(map(str, arguments))}: {answer.stderr.strip()}")
