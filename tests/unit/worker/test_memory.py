"""A process told to keep its memory takes no new pages for each pass; a model that cannot fit is refused at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from apparate_worker.model.errors import NotEnoughMemory
from apparate_worker.model.memory import BESIDE, check_room

FAULTS = """
import resource, sys, threading
import numpy as np
from apparate_worker.model.memory import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def passes():
    def one():
        return [np.ones(2**20, np.uint8) for _ in range(4)]
    one()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        one()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=passes)
thread.start()
thread.join()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc")
def test_freed_memory_is_used_again():
    done = subprocess.run([sys.executable, "-c", FAULTS, "keep"], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2000  # 20 passes of 4 MiB are 20,480 pages of 4 KiB


GIB = 2**30
CPU = torch.device("cpu")


def a_root(folder: Path, cgroup: str, files: dict[str, str], available: int = 64 * GIB) -> Path:
    """What the kernel shows of memory."""
    told = {
        "proc/self/cgroup": cgroup,
        "proc/meminfo": f"MemTotal: 67108864 kB\nMemAvailable: {available // 1024} kB\n",
    }
    for name, text in (told | files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


V1 = "4:memory:/docker/abc\n0::/\n"
LIMITED = [
    (
        "0::/\n",
        {
            "sys/fs/cgroup/memory.max": str(GIB),
            "sys/fs/cgroup/memory.current": str(GIB - 4 * 2**20),
            "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 4194304\n",
        },
    ),
    (
        "0::/pods/a/b\n",  # it is the pod that is limited, not the container
        {
            "sys/fs/cgroup/pods/a/b/memory.max": "max",
            "sys/fs/cgroup/pods/a/b/memory.current": "4096",
            "sys/fs/cgroup/pods/memory.max": str(GIB),
            "sys/fs/cgroup/pods/memory.current": str(GIB - 8 * 2**20),
        },
    ),
    (
        V1,  # the path is the host's, the folder the container's own
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(GIB - 7 * 2**20),
            "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 1048576\n",
        },
    ),
]


@pytest.mark.parametrize(("cgroup", "files"), LIMITED, ids=["version 2", "a parent", "version 1"])
def test_a_model_above_the_containers_limit_is_refused_with_need_and_limit(tmp_path, cgroup, files):
    root = a_root(tmp_path, cgroup, files)
    said = (
        r"m needs 132\.0 MiB to load \(100\.0 MiB of weights\), limit 1\.0 GiB: .* container has 8\.0 MiB left; raise"
    )
    with pytest.raises(NotEnoughMemory, match=said):
        check_room("m", 100 * 2**20, CPU, root)


def test_a_model_above_what_the_machine_has_left_is_refused(tmp_path):
    root = a_root(tmp_path, "0::/\n", {"sys/fs/cgroup/memory.max": "max"}, available=GIB)
    with pytest.raises(
        NotEnoughMemory, match=r"needs 2\.0 GiB .*, limit 64\.0 GiB: the memory of this machine has 1\.0"
    ):
        check_room("m", 2 * GIB - BESIDE, CPU, root)
    check_room("m", GIB - BESIDE, CPU, root)


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        ("", {}),
        ("garbage\n0\n", {}),
        (V1, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}),
        ("0::/\n", {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": "x"}),
    ],
)
def test_without_a_limit_nothing_is_refused(tmp_path, cgroup, files):
    check_room("m", 32 * GIB, CPU, a_root(tmp_path, cgroup, files))
    check_room("m", 32 * GIB, CPU, tmp_path / "nothing there")
