"""Child processes of tests: started with captured output, waited for with a bound, ended by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path


class Process:
    """One child with its stdout and stderr collected line by line."""

    def __init__(self, command: Sequence[str], environ: dict[str, str] | None = None) -> None:
        self.popen = subprocess.Popen(
            command,
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._collect, args=(stream, lines), daemon=True)
            for stream, lines in ((self.popen.stdout, self.out), (self.popen.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _collect(stream: object, lines: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.popen.pid

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def wait(self, within: float = 30) -> int:
        """Exit status; on a timeout the end of what it said is in the error."""
        try:
            status = self.popen.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {within} s; stderr ends: {self.err[-10:]}") from None
        for reader in self._readers:
            reader.join(5)
        return status

    def close(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        for reader in self._readers:
            reader.join(5)
        for stream in (self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()


@contextlib.contextmanager
def a_process(command: Sequence[str], environ: dict[str, str] | None = None) -> Iterator[Process]:
    """A child that is gone when the block ends."""
    process = Process(command, environ)
    try:
        yield process
    finally:
        process.close()


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        with Path(f"/proc/{pid}/stat").open() as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone, also while it is read
        return False
