"""buildah with a storage of our own. Its mounts live in a namespace of this process, and so never outlive it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from . import place
from .place import ImageFailed

OWN_MOUNTS = "APPARATE_IMAGES_OWN_MOUNTS"
NAMESPACES = ("--mount", "--propagation=private", "--pid", "--fork", "--kill-child", "--mount-proc")


def enter_own_mounts(arguments: Sequence[str]) -> None:
    """Start this program anew in namespaces whose mounts and processes end with it; return when it is in them."""
    if os.environ.get(OWN_MOUNTS):
        return
    again = [sys.executable, "-m", "apparate_images", *arguments]
    os.execvpe("unshare", ["unshare", *NAMESPACES, *again], {**os.environ, OWN_MOUNTS: "1"})


def command(*arguments: str) -> list[str]:
    """A buildah command on our storage. What it notes about mounts is forgotten with the mounts themselves."""
    storage, notes = place.root() / "storage", place.root() / place.SCRATCH / "run"
    return ["buildah", "--root", str(storage), "--runroot", str(notes), *arguments]


def environ() -> dict[str, str]:
    """Environment of buildah: no daemon, no user namespaces, temporary files beside the storage."""
    temporary = place.root() / place.SCRATCH / "tmp"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "STORAGE_DRIVER": "overlay", "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(temporary)}


def copy_image(reference: str, target: str, *arguments: str) -> None:
    """Copy an image of the storage by skopeo: buildah would compress its layers. Raises ImageFailed."""
    storage, notes = place.root() / "storage", place.root() / place.SCRATCH / "run"
    source = f"containers-storage:[overlay@{storage}+{notes}]{reference}"
    asked = ["skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", *arguments, source, target]
    done = subprocess.run(asked, env=environ(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageFailed(f"skopeo copy of {reference} ended with {done.returncode}: {done.stderr.strip()}")


def forget_steps(most: int = 300) -> None:
    """Steps of builds that no image has any more make later ones quick; remove them when there are many."""
    if len(answer("images", "--all", "--quiet").splitlines()) > most:
        run("rmi", "--prune", "--force")


def exists(reference: str) -> bool:
    """Whether the storage has an image."""
    asked = command("inspect", "--type", "image", reference)
    return subprocess.run(asked, env=environ(), capture_output=True, check=False).returncode == 0


def answer(*arguments: str) -> str:
    """What buildah prints. Raises ImageFailed with its complaint."""
    done = subprocess.run(command(*arguments), env=environ(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ImageFailed(f"buildah {' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


def run(*arguments: str) -> None:
    """Run buildah for its effect. Raises ImageFailed."""
    answer(*arguments)


def follow(*arguments: str, log: Path) -> None:
    """Run a long build: its steps are shown, all it says goes to `log`. Raises ImageFailed with the end of that."""
    with log.open("w") as out:
        process = subprocess.Popen(
            command(*arguments),
            env=environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            out.flush()
            if re.match(r"(\[\S+\] )?STEP|Prepared |Installed |Bytecode ", line):
                place.say(f"  {line.rstrip()[:100]}")
        status = process.wait()
    if status:
        end = "\n  ".join(log.read_text().splitlines()[-15:])
        raise ImageFailed(f"buildah {arguments[0]} ended with {status}; {log} ends:\n  {end}")
