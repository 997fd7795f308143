"""One child process of local mode: started, waited for until ready, restarted after a crash, ended."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apparate.cli.logs import LogWriter
from apparate.service.child import spawn

QUICK_S = 10.0  # a child that dies sooner has crashed at start, and will again
MOST_QUICK_CRASHES = 5
FIRST_BACKOFF_S, MOST_BACKOFF_S = 0.2, 5.0
BAD_INPUT = 2  # exit status of a child whose input is to blame: another try changes nothing


@dataclass
class Child:
    """A process that prints one line of JSON when it is ready and logs to stderr.

    Owned by the thread that calls `start`; the fields may be read from any thread.
    """

    name: str
    command: Sequence[str]
    environ: dict[str, str]
    log: LogWriter
    ready: Mapping[str, Any] | None = None
    """What the ready line said; None while it starts."""
    restarts: int = 0
    given_up: str = ""
    """Why it is not started again; empty while it is."""
    _popen: subprocess.Popen[bytes] | None = None
    _started: float = 0.0
    _quick: int = 0
    _next_start: float = 0.0
    _said: deque[str] = field(default_factory=lambda: deque(maxlen=20))
    _readers: list[threading.Thread] = field(default_factory=list)

    @property
    def pid(self) -> int | None:
        """Process id; None when it does not run."""
        return self._popen.pid if self._popen is not None and self._popen.poll() is None else None

    def start(self) -> None:
        """Start the process."""
        self.ready = None
        self._started = time.monotonic()
        self._popen = spawn(self.command, environ=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self._readers = [
            threading.Thread(target=self._read_ready, args=(self._popen,), name=f"{self.name} stdout", daemon=True),
            threading.Thread(target=self._read_log, args=(self._popen,), name=f"{self.name} stderr", daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_ready(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stdout is not None
        with popen.stdout as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                try:
                    said = json.loads(text)
                except ValueError:
                    said = None
                if isinstance(said, dict) and said.get("ready") and popen is self._popen:
                    self._keep_ports(said)
                    self.ready = said
                elif text:
                    self.log.line(self.name, text)

    def _keep_ports(self, said: Mapping[str, Any]) -> None:
        """A restart takes the ports it had, so clients need not look again."""
        for key, variables in PORTS.items():
            port = str(said.get(key, "")).rpartition(":")[2]
            for variable in variables:
                if port and variable in self.environ:
                    self.environ[variable] = port

    def _read_log(self, popen: subprocess.Popen[bytes]) -> None:
        assert popen.stderr is not None
        with popen.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._said.append(text)
                    self.log.line(self.name, text)

    def tend(self) -> None:
        """Start it again when it has died and its backoff is over. Call often, from the thread that started it."""
        if self._popen is None or self.given_up:
            return
        status = self._popen.poll()
        if status is None:
            return
        now = time.monotonic()
        if not self._next_start:
            self._note_crash(status, now)
        elif now >= self._next_start:
            self._next_start = 0.0
            self.restarts += 1
            self.start()

    def _note_crash(self, status: int, now: float) -> None:
        lived = now - self._started
        self._join()
        never_ready, self.ready = self.ready is None, None
        self._quick = self._quick + 1 if lived < QUICK_S and status else 0  # status 0: somebody asked it to end
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        if self._quick >= MOST_QUICK_CRASHES or (never_ready and status == BAD_INPUT):
            self.given_up = f"{self.name} ended with {how}: {self.last_words()}"
            self.log.event(self.name, "given up", level="error", reason=self.given_up)
            return
        wait = min(FIRST_BACKOFF_S * 2 ** max(self._quick - 1, 0), MOST_BACKOFF_S)
        self._next_start = now + wait
        self.log.event(self.name, f"{how}; starting again", level="warning", after_s=round(lived, 1), wait_s=wait)

    def last_words(self) -> str:
        """The last thing it logged that says something, for an error message."""
        for text in reversed(self._said):
            try:
                entry = json.loads(text)
            except ValueError:
                return text
            if isinstance(entry, dict) and entry.get("level") in ("error", "critical"):
                told = entry.get("error") or entry.get("reason") or entry.get("exception") or ""
                words = (str(entry.get("event") or ""), *str(told).strip().splitlines()[-1:])
                return ": ".join(word for word in words if word)
        return self._said[-1] if self._said else "it said nothing"

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self._popen is not None and self._popen.poll() is None:
            self._popen.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came in time."""
        if self._popen is None:
            return True
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._join()
        return True

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(1.0)

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs or before it started."""
        return None if self._popen is None else self._popen.poll()


PORTS = {"http": ("EEM_WORKER_HTTP_PORT", "EEM_CONTROLLER_PORT"), "grpc": ("EEM_WORKER_GRPC_PORT",)}
