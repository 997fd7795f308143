"""What the benchmark needs beside the project: an environment for each peer, and wrk."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from apparate_cluster import debian

HERE = Path(__file__).parent
PEERS = ("mlserver", "kserve", "litserve", "mosec")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apparate" / "bench"
PACKAGES = sysconfig.get_paths()["purelib"]
"""The project's packages, torch among them."""


def environment(peer: str) -> Path:
    """The Python of a peer's own environment, made of its pinned and hashed requirements unless it is there."""
    folder, pins = CACHE / "venvs" / peer, HERE / "peers" / f"{peer}.txt"
    python, marker = folder / "bin" / "python", folder / "pins.sha256"
    digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()
    if marker.is_file() and marker.read_text() == digest:
        return python
    uv = str(Path(sys.executable).with_name("uv"))
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    sync = [uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(pins)]
    subprocess.run(sync, check=True)
    marker.write_text(digest)
    return python


def version(peer: str) -> str:
    """The pinned version of a peer."""
    lines = (HERE / "peers" / f"{peer}.in").read_text().splitlines()
    return next(line.partition("==")[2] for line in lines if line.startswith(peer))


def wrk() -> str:
    """The load generator's program, installed from Debian when it is missing. Raises RuntimeError."""
    if not debian.has("wrk") and (problem := debian.install(["wrk"])):
        raise RuntimeError(f"the load generator wrk is missing: {problem}")
    found = shutil.which("wrk", path=debian.search_path())
    assert found is not None
    return found
