"""Run the Dockerfiles that have something new, and put what came out into archives."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import archives, base, buildah, images, place, sbom, secrets
from .images import ROOT, Image
from .place import ImageFailed, say

DEFAULT_BASE = "docker.io/library/python:3.11-slim-bookworm"


@dataclass(frozen=True)
class Made:
    """A finished image: its archives, in the order to load them in, its bill of materials, and sizes in bytes."""

    name: str
    folder: Path
    size: int
    """Of all layers, uncompressed."""
    own: int
    """Without those of the base."""

    @property
    def archives(self) -> list[Path]:
        """What a node loads, in this order."""
        return [Path(one) for one in json.loads((self.folder / archives.LIST).read_text())]

    @property
    def sbom(self) -> Path:
        """CycloneDX, JSON."""
        return self.folder / sbom.NAME


def made(image: Image) -> Made | None:
    """What was made of these very inputs, if it was."""
    folder = _folder(image)
    try:
        about = json.loads((folder / "about.json").read_text())
        found = Made(image.name, folder, about["size"], about["own"])
        return found if all(archive.exists() for archive in found.archives) else None
    except FileNotFoundError:
        return None


def in_order(done: Iterable[Made]) -> list[Path]:
    """Archives of images, in the order to load them in."""
    return list(dict.fromkeys(archive for one in done for archive in one.archives))


def build(names: Sequence[str]) -> list[Made]:
    """Bring each image up to date, by buildah; what is so already stays. Raises ImageFailed."""
    buildah.run("rm", "--all")  # of a build that was killed
    done = []
    for number, name in enumerate(names, 1):
        image = images.BY_NAME[name]
        found = made(image)
        if found is None:
            found = _build(image, f"{number} of {len(names)}")
        done.append(found)
    return done


def _folder(image: Image) -> Path:
    return place.root() / "built" / f"{image.name}-{images.key(image, base.key())}"


def _build(image: Image, position: str) -> Made:
    say(f"{position}: {image.name}, from {image.dockerfile}")
    started = time.monotonic()
    base.ensure()
    target = _folder(image)  # before the build: a file that changes meanwhile makes another image next time
    log = place.root() / f"{image.name}.log"
    reference = images.reference(image.name)
    buildah.follow(*_command(image, reference), log=log)
    if image.layers_of_its_own:
        stage = archives.stage_reference(image)
        buildah.follow(*_command(image, stage, "--target", image.layers_of_its_own), log=log.with_suffix(".stage.log"))
    fresh = place.root() / place.SCRATCH / "made"
    fresh.mkdir()
    size, own = archives.write(image, fresh)
    _check_size(image, own)
    sbom.write(reference, fresh / sbom.NAME)
    (fresh / "about.json").write_text(json.dumps({"size": size, "own": own}))
    for old in target.parent.glob(f"{image.name}-*"):
        shutil.rmtree(old)
    target.parent.mkdir(exist_ok=True)
    fresh.rename(target)
    archives.forget_unused()
    buildah.forget_steps()
    say(f"{position}: {image.name} done in {time.monotonic() - started:.0f} s")
    return Made(image.name, target, size, own)


def _command(image: Image, reference: str, *more: str) -> list[str]:
    bases = {"BASE": base.runtime(), "BUILD_BASE": base.for_building(), "FRESH": str(time.time_ns())}
    if image.parent:
        bases["PARENT"] = images.reference(image.parent)
    _share_uv_cache()
    arguments = [f"--build-arg={name}={value}" for name, value in (bases | image.chosen() | labels()).items()]
    return [
        "bud",
        "--layers",
        "--pull-never",
        "--format=oci",
        *secrets.arguments(place.root() / place.SCRATCH),
        *arguments,
        *more,
        f"--file={ROOT / image.dockerfile}",
        f"--tag={reference}",
        str(ROOT),
    ]


def labels() -> dict[str, str]:
    """Build arguments that end up in labels; IMAGE_SOURCE is the address of the sources that people see."""
    return {
        "VERSION": images.version(),
        "REVISION": _revision() or "unknown",
        "SOURCE": os.environ.get("IMAGE_SOURCE", "unknown"),
    }


def _revision() -> str:
    """The commit; empty where git does not tell."""
    if not shutil.which("git"):  # an unpacked archive of the sources needs none
        return ""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _share_uv_cache() -> None:
    """Let `--mount=type=cache,id=apparate-uv` be uv's cache of this machine: buildah keeps such mounts by their id."""
    caches = Path(buildah.environ()["TMPDIR"]) / "buildah-cache"
    caches.mkdir(exist_ok=True)
    link = caches / "apparate-uv"
    if not link.exists():
        uv = [str(ROOT / ".venv" / "bin" / "uv"), "cache", "dir"]
        there = Path(subprocess.run(uv, capture_output=True, text=True, check=True).stdout.strip())
        there.mkdir(parents=True, exist_ok=True)
        link.symlink_to(there)


def _check_size(image: Image, own: int) -> None:
    if image.limit_mb is not None and own > image.limit_mb * 1e6:
        raise ImageFailed(
            f"{image.name} adds {own / 1e6:.0f} MB to the base, allowed {image.limit_mb} MB "
            "(tools/images/apparate_images/images.py): see what its requirements brought"
        )
