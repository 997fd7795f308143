"""A process told to keep its memory takes no new pages for each pass."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
