"""A process that is the first of its container, which Linux gives no default action for signals."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.eventually import eventually

CODE = """
import time
{first}
print("runs", flush=True)
time.sleep(30)
"""


@pytest.fixture
def first_process():
    started = []

    def start(first):
        own = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        code = CODE.format(first=first)
        outer = subprocess.Popen(
            ["unshare", *own, "--pid", "--fork", "--kill-child", sys.executable, "-c", code], stdout=subprocess.PIPE
        )
        started.append(outer)
        assert outer.stdout.readline() == b"runs\n"
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        return outer, int(children[0])

    yield start
    for outer in started:
        outer.kill()
        outer.wait()
        outer.stdout.close()


def test_sigterm_ends_the_first_process_of_a_container_before_it_handles_signals(first_process):
    outer, inner = first_process("from apparate.service.signals import end_on_sigterm; end_on_sigterm()")
    os.kill(inner, signal.SIGTERM)
    eventually(lambda: outer.poll() is not None)
    assert outer.returncode == 128 + signal.SIGTERM


def test_without_that_it_would_not_hear_it(first_process):
    outer, inner = first_process("")
    os.kill(inner, signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        outer.wait(1)
