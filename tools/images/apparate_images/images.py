"""Which images there are, what each is made from, and how large it may be."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
COPIED = re.compile(r"^COPY (?!--)(?P<sources>.+) \S+$", re.MULTILINE)
NOT_COPIED = ("__pycache__", ".egg-info")  # as .dockerignore has it
REGISTRY = "localhost"
"""What stands before the names of images that were never in a registry."""


@dataclass(frozen=True)
class Image:
    """One image. `limit_mb` bounds what it adds to the base, in 10^6 bytes of uncompressed layers."""

    name: str
    dockerfile: str
    limit_mb: int | None = None
    parent: str = ""
    """Name of the image of ours that it builds on."""
    layers_of_its_own: str = ""
    """Stage whose layers are large and seldom change: they go into an archive of their own."""
    choices: tuple[str, ...] = ()
    """Build arguments that are taken from the environment, as IMAGE_<name>."""

    @property
    def text(self) -> str:
        """The Dockerfile."""
        return (ROOT / self.dockerfile).read_text()

    def chosen(self) -> dict[str, str]:
        """Build arguments of the environment; where one is not set the Dockerfile's default holds."""
        asked = {name: os.environ.get(f"IMAGE_{name}", "") for name in self.choices}
        return {name: value for name, value in asked.items() if value}

    def files(self) -> Iterator[Path]:
        """Every file that the Dockerfile copies from the project, in a fixed order."""
        for found in COPIED.finditer(self.text):
            for source in found["sources"].split():
                yield from _below(ROOT / source)


ALL = (
    Image("apparate-operator", "operator/Dockerfile", limit_mb=250),
    Image("apparate-controller", "services/controller/Dockerfile", limit_mb=350),
    Image("apparate-worker", "services/worker/Dockerfile", layers_of_its_own="dependencies", choices=("ACCELERATOR",)),
    Image("apparate-demo", "tools/demo/Dockerfile", parent="apparate-worker"),
    Image("apparate-redis", "tools/images/redis.Dockerfile"),
)
BY_NAME = {image.name: image for image in ALL}


def version() -> str:
    """The project's version, which is the tag of its images."""
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found
    return found[1]


def reference(name: str) -> str:
    """Name and tag by which pods ask for an image that was made here."""
    return f"{REGISTRY}/{name}:{version()}"


def key(image: Image, base: str) -> str:
    """Hash of everything that decides what is in an image: base, Dockerfile, build arguments, each file copied."""
    made_from = hashlib.sha256(f"{base}\0{version()}\0{sorted(image.chosen().items())}\0{image.text}".encode())
    for path in image.files():
        made_from.update(f"\0{path.relative_to(ROOT)}\0{path.stat().st_mode & 0o111}\0".encode())
        made_from.update(hashlib.sha256(path.read_bytes()).digest())
    if image.parent:
        made_from.update(key(BY_NAME[image.parent], base).encode())
    return made_from.hexdigest()[:16]


def _below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for folder, folders, names in os.walk(path):
        folders[:] = sorted(one for one in folders if not one.startswith(".") and not one.endswith(NOT_COPIED))
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith(".") and name[-4:] != ".pyc")
