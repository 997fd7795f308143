"""Two images that are made here: the pause of every pod, of one static program, and a shell for tests.

The shell image also has the machine's bash with its libraries: Debian's static busybox ends with a segmentation fault
when `wget` resolves a name, while bash resolves as most programs do (`exec 3<>/dev/tcp/NAME/PORT`).
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

PAUSE = "localhost/pause:1"
BUSYBOX = "localhost/busybox:1"
NOBODY = 65_532
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as images call them


def write(path: Path, busybox: Path, bash: Path = Path("/bin/bash")) -> None:
    """An archive with both images, as `docker save` would write it."""
    applets = _said(busybox, "--list").split()
    shell = [bash, *map(Path, re.findall(r"(/\S+) \(0x", _said("ldd", bash)))]
    with tarfile.open(path, "w") as archive:
        made = [
            _add(archive, PAUSE, _layer(busybox), ["/bin/busybox", "sleep", "2147483647"]),
            _add(archive, BUSYBOX, _layer(busybox, applets, shell), ["/bin/sh"]),
        ]
        _file(archive, "manifest.json", json.dumps(made).encode())


def _add(archive: tarfile.TarFile, name: str, layer: bytes, command: list[str]) -> dict[str, object]:
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Cmd": command, "Env": ["PATH=/bin"], "User": str(NOBODY) if name == PAUSE else ""},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    _file(archive, f"{digest}.tar", layer)
    settings = f"{hashlib.sha256(config).hexdigest()}.json"
    _file(archive, settings, config)
    return {"Config": settings, "RepoTags": [name], "Layers": [f"{digest}.tar"]}


def _said(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _layer(busybox: Path, applets: Sequence[str] = (), more: Sequence[Path] = ()) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as layer:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            layer.addfile(entry)
        _file(layer, "bin/busybox", busybox.read_bytes(), mode=0o755)
        _file(layer, "etc/passwd", f"root:x:0:0::/:/bin/sh\nnobody:x:{NOBODY}:{NOBODY}::/tmp:/bin/sh\n".encode())
        for program in more:
            _file(layer, str(program).lstrip("/"), program.read_bytes(), mode=0o755)
        for applet in sorted(set(applets) - {"busybox", "bash"}):
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
    return made.getvalue()


def _file(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))
