"""Child processes that cannot outlive their parent, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
PORTS = range(20_000, 32_000)  # below what the kernel hands to outgoing connections
LOG_TAIL_LINES = 15

_libc = ctypes.CDLL(None, use_errno=True)  # loaded before any fork


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class EndedEarly(RuntimeError):
    """A child ended while it was needed; the text has the end of its log."""


class Child:
    """One process with a log file. The kernel kills it when the thread that started it ends, however that ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environ: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name, self.log = name, log
        self._command, self._environ, self._pass = [str(part) for part in command], environ, tuple(pass_fds)
        self.popen = self._start()

    def again(self) -> None:
        """Start it once more, after its end."""
        self.stop()
        self.popen = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as out:
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                env=self._environ,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the parent, which stops its children in order
                preexec_fn=_die_with_parent,  # safe before other threads start
                pass_fds=self._pass,
            )

    def check(self) -> None:
        """Raise EndedEarly when it no longer runs."""
        status = self.popen.poll()
        if status is not None:
            raise EndedEarly(f"{self.name} ended with {status}; its log {self.log} ends:\n{self.log_tail()}")

    def log_tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])

    def stop(self, within_s: float = 10) -> None:
        """SIGTERM, and SIGKILL when that takes longer than `within_s` seconds."""
        if self.popen.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.popen.pid, signal.SIGCONT)  # a frozen one cannot end
        self.popen.terminate()
        try:
            self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now. Another process may take one before you do: be ready to ask again."""
    found: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError(f"no {count} free ports in {PORTS.start}..{PORTS.stop - 1}")


def until(ready: Callable[[], bool], child: Child, within_s: float) -> None:
    """Wait until `ready()` is true; raise EndedEarly when `child` ends before, TimeoutError after `within_s`."""
    deadline = time.monotonic() + within_s
    while not ready():
        child.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{child.name} is not ready after {within_s} s; its log ends:\n{child.log_tail()}")
        time.sleep(0.05)
