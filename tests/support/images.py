"""Images of `make images`, opened: their configuration, the files of their layers, and a command run inside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apparate_images import build, buildah, images

RUN = """
import subprocess, sys
from apparate_images import buildah, place
with place.one_at_a_time():
    container = buildah.answer("from", "--pull-never", sys.argv[1])
    try:
        command = buildah.command("run", container, "--", *sys.argv[2:])
        sys.exit(subprocess.run(command, env=buildah.environ(), stdin=subprocess.DEVNULL).returncode)
    finally:
        buildah.run("rm", container)
"""


class Opened:
    """One image of this checkout."""

    def __init__(self, name: str) -> None:
        found = build.made(images.BY_NAME[name])
        assert found is not None, f"{name} is not made of the files as they are now: make images"
        self.made, self.reference = found, images.reference(name)
        self._blobs: dict[str, tuple[Path, str]] = {}
        for archive in found.archives:
            with tarfile.open(archive) as packed:
                self._blobs |= {one.name: (archive, one.name) for one in packed if one.name.startswith("blobs/")}
                index = json.load(packed.extractfile("index.json"))  # type: ignore[arg-type]
        self.manifest = self._json(index["manifests"][0]["digest"])  # of the last archive, which is its own
        self.config = self._json(self.manifest["config"]["digest"])

    def layers(self, at_most_bytes: int | None = None) -> Iterator[tarfile.TarFile]:
        """Its layers, from the base up; with `at_most_bytes` without those that are larger."""
        for layer in self.manifest["layers"]:
            if at_most_bytes is None or layer["size"] <= at_most_bytes:
                archive, name = self._blobs[f"blobs/{layer['digest'].replace(':', '/')}"]
                with tarfile.open(archive) as outer, tarfile.open(fileobj=outer.extractfile(name)) as files:
                    yield files

    def names(self) -> Iterator[str]:
        """Every file of every layer."""
        for layer in self.layers():
            yield from (one.name.removeprefix("./") for one in layer)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command inside, as the image's own user and with its own environment."""
        again = ["unshare", *buildah.NAMESPACES, sys.executable, "-c", RUN, self.reference, *command]
        environ = {**os.environ, "PYTHONPATH": str(images.ROOT / "tools" / "images")}
        return subprocess.run(again, env=environ, capture_output=True, text=True, check=False, timeout=120)

    def _json(self, digest: str) -> dict[str, Any]:
        archive, name = self._blobs[f"blobs/{digest.replace(':', '/')}"]
        with tarfile.open(archive) as packed:
            found: dict[str, Any] = json.load(packed.extractfile(name))  # type: ignore[arg-type]
        return found
