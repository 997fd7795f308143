"""docker or podman, where one answers: they build the same Dockerfiles, and keep the images themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from . import build, images, place, secrets
from .images import ROOT
from .place import ImageFailed, say


def choose(asked: str) -> str:
    """The engine to use: what was asked for, else one that answers, else buildah."""
    if asked != "auto":
        return asked
    return next((engine for engine in ("docker", "podman") if answers(engine)), "buildah")


def answers(engine: str) -> bool:
    """Whether an engine is here and works."""
    if not shutil.which(engine):
        return False
    try:
        return subprocess.run([engine, "info"], capture_output=True, check=False, timeout=20).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def build_command(engine: str, name: str, secret_arguments: Sequence[str]) -> list[str]:
    """Command that builds one image; IMAGE_BASE is another base than the Dockerfile's."""
    image = images.BY_NAME[name]
    given = image.chosen() | build.labels()
    if base := os.environ.get("IMAGE_BASE"):
        given["BASE"] = base
    if image.parent:
        given["PARENT"] = images.reference(image.parent)
    arguments = [f"--build-arg={key}={value}" for key, value in given.items()]
    file, tag = f"--file={ROOT / image.dockerfile}", f"--tag={images.reference(name)}"
    return [engine, "build", *secret_arguments, *arguments, file, tag, str(ROOT)]


def build_all(engine: str, names: Sequence[str]) -> None:
    """Build each image; the engine shows its progress and knows what has changed. Raises ImageFailed."""
    with place.one_at_a_time():
        given = secrets.arguments(place.root() / place.SCRATCH)
        for number, name in enumerate(names, 1):
            say(f"{number} of {len(names)}: {name}, by {engine}")
            environ = {**os.environ, "DOCKER_BUILDKIT": "1"}
            status = subprocess.run(build_command(engine, name, given), env=environ, check=False).returncode
            if status:
                raise ImageFailed(f"{engine} build of {name} ended with {status}, see above")
    say(f"they are in {engine}: {engine} image ls")
