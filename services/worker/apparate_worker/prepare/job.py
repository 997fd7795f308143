"""The working folder of one preparation: stages that are finished once, one process at a time."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from apparate.contract.document import Document
from apparate_worker.prepare.progress import Progress, Step

KEY = "key.json"


@dataclass(frozen=True, eq=False)
class Job:
    """One preparation: what is prepared, on what, into which folder, and who is told."""

    document: Document
    device: torch.device
    partial: Path
    key: str
    tell: Progress
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """What the model is made of, by field of the document."""

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[float], None]]:
        """Tell of one stage: its share done, and at the end how long it took."""
        began = time.monotonic()
        self.tell(Step(name, 0.0))
        yield lambda share: self.tell(Step(name, min(share, 1.0)))
        self.tell(Step(name, 1.0, f"{time.monotonic() - began:.1f} s"))

    def finished(self, marker: str) -> dict[str, Any] | None:
        """What a stage left behind when it finished in an earlier run, or None."""
        found = _read(self.partial / marker)
        return dict(found) if found is not None else None

    def finish(self, marker: str, content: Mapping[str, Any]) -> None:
        """Mark a stage as finished, for a later run that resumes; what it wrote is on the disk before the mark is."""
        for path in self.partial.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        fresh = self.partial / f".{marker}"
        fresh.write_text(json.dumps(content), encoding="utf-8")
        fresh.rename(self.partial / marker)


@contextmanager
def alone(folder: Path, tell: Progress) -> Iterator[None]:
    """Only one process prepares into a folder at a time; another waits and then finds the work done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and not os.access(folder.parent, os.W_OK):
        yield  # nobody prepares into a folder that cannot be written, but it may hold what is wanted
        return
    with folder.with_name(f".{folder.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(Step("waiting", 0.0, f"another process is preparing {folder}"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def partial_folder(folder: Path, key: str, force: bool) -> Path:
    """The folder this preparation works in: of an earlier run of the same inputs if it was stopped, else empty."""
    partial = folder.with_name(f".{folder.name}.partial")
    marker = partial / KEY
    if force or _read(marker) != key:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        marker.write_text(json.dumps(key), encoding="utf-8")
    return partial


def _read(path: Path) -> Any:
    """The JSON of a file; None when there is none, or only a part of it, as a full disk or a lost machine leaves it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
