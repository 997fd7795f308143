"""What memory there is for a model, looked at before it is loaded; and freed memory stays with the process.

Otherwise every pass gives its activations back and takes them anew.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from apparate_worker.model.errors import NotEnoughMemory

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # names and numbers of glibc's malloc.h
MMAP_ABOVE = 32 * 2**20  # bytes; the most that glibc's threads other than the first keep in their heaps
TRIM_ABOVE = 2**30  # bytes
BESIDE = 32 * 2**20  # bytes that a worker takes at least beside its weights: threads, servers, activations
UNLIMITED = 1 << 60  # bytes; a cgroup without a limit has one about as large as a number can be


def keep_freed_memory() -> bool:
    """Have malloc keep what is freed, for later passes; whether the C library was told so.

    With glibc's defaults a block above 128 KiB is fresh from the kernel, page by page: a pass of MobileNet at batch
    size 8 takes 840 page faults and half as long again.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_ABOVE)) and bool(mallopt(M_TRIM_THRESHOLD, TRIM_ABOVE))


@dataclass(frozen=True)
class Limit:
    """One bound on memory, in bytes; `left` of it is free. `copies`: how often a model's weights count against it."""

    name: str
    limit: int
    left: int
    remedy: str
    copies: int = 1


def check_room(what: str, weights: int, device: torch.device, root: Path = Path("/")) -> None:
    """Refuse a model whose weights, in bytes, cannot fit. Raises NotEnoughMemory with need and limit.

    A model that passes may still need more: activations are not known. Files that cannot be read limit nothing.
    """
    bounds = [*_of_cgroups(root), *_of_the_machine(root), *_of_the_process(root)]
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        bounds = [Limit(f"memory of {device}", total, free, "take a larger GPU, or one that nobody else uses")]
    for bound in bounds:
        need = weights * bound.copies + BESIDE
        if need > bound.left:
            raise NotEnoughMemory(
                f"{what} needs {_size(need)} to load ({_size(weights)} of weights), limit {_size(bound.limit)}: the "
                f"{bound.name} has {_size(max(0, bound.left))} left; {bound.remedy}"
            )


def _of_cgroups(root: Path) -> Iterator[Limit]:
    """Of the process's memory cgroup and those around it, version 1 and 2."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mounts: tuple[str, ...]
        if not controllers:
            mounts = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mounts = ("sys/fs/cgroup/memory",)
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for mount in mounts:
            folder = root / mount / path.lstrip("/")
            while folder.is_relative_to(root / mount):  # a path of the host's may not be there: the container's own is
                yield from _of_a_cgroup(folder, *names)
                folder = folder.parent


def _of_a_cgroup(folder: Path, limit: str, usage: str, cache: str) -> Iterator[Limit]:
    bound, used = _number(folder / limit), _number(folder / usage)
    if bound is None or used is None or bound >= UNLIMITED:
        return
    pages = dict(line.split(" ", 1) for line in _lines(folder / "memory.stat") if " " in line).get(cache, "0")
    kept = int(pages) if pages.isdecimal() else 0  # pages of files, which the kernel gives up when it has to
    yield Limit(
        "memory limit of the container", bound, bound - used + kept, "raise spec.serving.resources.limits.memory"
    )


def _of_the_machine(root: Path) -> Iterator[Limit]:
    found = _table(root / "proc/meminfo")
    if "MemTotal" in found and "MemAvailable" in found:
        yield Limit(
            "memory of this machine", found["MemTotal"], found["MemAvailable"], "free some, or take a larger one"
        )


def _of_the_process(root: Path) -> Iterator[Limit]:
    bound, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _table(root / "proc/self/status").get("VmSize")
    if bound != resource.RLIM_INFINITY and used is not None:
        # the file is mapped while its tensors are copied
        yield Limit("address space of the process", bound, bound - used, "raise it with ulimit -v", copies=2)


def _table(path: Path) -> dict[str, int]:
    """Bytes by name of a file of the kernel's with lines `Name: 123 kB`."""
    fields = (line.split() for line in _lines(path))
    return {f[0].rstrip(":"): int(f[1]) * 1024 for f in fields if len(f) == 3 and f[1].isdecimal()}


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.1f} {unit}"
