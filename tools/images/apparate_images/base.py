"""The base image where none can be pulled: Debian with Python, by debootstrap from the mirror that apt uses here."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

from . import buildah, place
from .place import ImageFailed, say

PACKAGES = ("ca-certificates", "python3")
UNWANTED = (  # of the machine, of the mirror, or of no use in a container
    "debootstrap",
    "etc/apt/sources.list",
    "etc/hostname",
    "etc/machine-id",
    "etc/resolv.conf",
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
)
TAKES_S = 35
PIP = Path("usr/lib/python3/dist-packages/pip")


def suite() -> str:
    """Debian's release on this machine. Raises ImageFailed where it is another system."""
    release = Path("/etc/os-release").read_text() if Path("/etc/os-release").exists() else ""
    found = re.search(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)
    if not found or not re.search(r"^ID=debian$", release, re.MULTILINE):
        raise ImageFailed(
            "no container engine answers here, and without one images are made on Debian only: start docker or podman"
        )
    return found[1]


def key() -> str:
    """Hash of what decides what the base is."""
    recipe = Path(__file__).read_bytes()
    return hashlib.sha256(f"{suite()} {platform.machine()} ".encode() + recipe).hexdigest()[:12]


def runtime() -> str:
    """Reference of the base image."""
    return f"localhost/apparate-base:{key()}"


def for_building() -> str:
    """Reference of the base image with pip, for stages that are thrown away."""
    return f"localhost/apparate-build-base:{key()}"


def ensure() -> None:
    """Make both if they are not there. Raises ImageFailed."""
    if not buildah.exists(runtime()):
        tree = _bootstrap()
        container = buildah.answer("from", "scratch")
        try:
            buildah.run("add", "--quiet", container, str(tree), "/")
            buildah.run("config", "--env", "LANG=C.UTF-8", "--cmd", '["python3"]', container)
            buildah.run("commit", "--quiet", "--format", "oci", container, runtime())
        finally:
            buildah.run("rm", container)
    if not buildah.exists(for_building()):
        container = buildah.answer("from", runtime())
        try:
            buildah.run("copy", "--quiet", container, str(_own_pip()), f"/{PIP}")
            buildah.run("commit", "--quiet", "--format", "oci", container, for_building())
        finally:
            buildah.run("rm", container)


def _own_pip() -> Path:
    import pip

    return Path(pip.__file__).parent


def mirror(release: str) -> str:
    """The mirror of a release in apt's sources here. Raises ImageFailed when there is none."""
    asked = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
    said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    for line in said.splitlines():
        found, component, uri = line.split(maxsplit=2)
        if (found, component) == (release, "main"):
            return uri
    raise ImageFailed(f"apt's sources here have no mirror of {release} main, which the base image is made from")


def _bootstrap() -> Path:
    release = suite()
    say(f"the base: Debian {release} with {', '.join(PACKAGES)}, about {TAKES_S} s, once")
    tree = place.root() / place.SCRATCH / "base"
    log = place.root() / "base.log"
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", release, str(tree)]
    with log.open("w") as out:
        status = subprocess.run(
            [*command, mirror(release)], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, check=False
        ).returncode
    if status:
        end = "\n  ".join(log.read_text().splitlines()[-10:])
        raise ImageFailed(f"debootstrap ended with {status}; {log} ends:\n  {end}")
    for name in UNWANTED:
        path = tree / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for folder in ("var/log", "var/cache/apt/archives/partial", "var/lib/apt/lists/partial"):
        (tree / folder).mkdir(parents=True)
    archive = tree.with_suffix(".tar")
    with tarfile.open(archive, "w") as packed:
        packed.add(tree, ".")
    shutil.rmtree(tree)
    return archive
