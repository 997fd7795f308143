"""Images from archives into a cluster's containerd: what is there is left out, and there has to be room."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from .folder import Folder
from .supervisor import ctr_command

IMPORTED_WITHIN_S = 600  # of one archive
NAME = "io.containerd.image.name"
COPIES = 2  # containerd keeps what it imports, and what it unpacks from that
SPARE = 2e9  # bytes


class NotLoaded(RuntimeError):
    """An archive could not be imported; the text says why."""


def load(folder: Folder, archives: Sequence[Path], say: Callable[[str], None]) -> None:
    """Import archives in their order, but for those whose images are there. Raises NotLoaded, FileNotFoundError."""
    for archive in archives:
        if not archive.is_file():
            raise FileNotFoundError(f"{archive}: no such image archive")
    there = present(folder)
    wanted = [one for one in archives if not (of := names(one)) or not of.items() <= there.items()]
    check_room(folder, sum(one.stat().st_size for one in wanted))
    for archive in wanted:
        say(f"loading {archive.name}, {archive.stat().st_size / 1e6:.0f} MB")
        _ctr(folder, "images", "import", archive)


def present(folder: Folder) -> dict[str, str]:
    """The images that containerd has: name to digest."""
    lines = _ctr(folder, "images", "list").splitlines()[1:]  # below the headings
    return {line.split()[0]: line.split()[2] for line in lines}


def names(archive: Path) -> dict[str, str]:
    """Name to digest of the images of an archive that says both (OCI layout); else empty."""
    with tarfile.open(archive) as packed:
        for entry in packed:
            if entry.name == "index.json" and (content := packed.extractfile(entry)):
                manifests = json.load(content)["manifests"]
                return {one["annotations"][NAME]: one["digest"] for one in manifests if NAME in one["annotations"]}
    return {}


def check_room(folder: Folder, size: int) -> None:
    """Raise NotLoaded when archives of `size` bytes in all have no room."""
    free = shutil.disk_usage(folder.images).free
    if size and (needed := COPIES * size + SPARE) > free:
        raise NotLoaded(
            f"{folder.images} has {free / 1e9:.1f} GB free and these images need {needed / 1e9:.1f} GB: "
            "make room, or have the cluster elsewhere (EEM_CLUSTER_FOLDER)"
        )


def _ctr(folder: Folder, *arguments: str | Path) -> str:
    """What containerd's tool prints. Raises NotLoaded."""
    told = " ".join(map(str, arguments))
    try:
        command = ctr_command(folder, *arguments)
        answer = subprocess.run(command, capture_output=True, text=True, timeout=IMPORTED_WITHIN_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotLoaded(f"ctr {told}: no end after {IMPORTED_WITHIN_S} s; logs: {folder.log}") from None
    if answer.returncode:
        raise NotLoaded(f"ctr {told}: {answer.stderr.strip()}")
    return answer.stdout
