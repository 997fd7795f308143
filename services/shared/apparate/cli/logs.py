"""Log lines of child processes on our stderr: for people on a terminal, as JSON otherwise."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO

DIM, RED, YELLOW, RESET = "\033[2m", "\033[31m", "\033[33m", "\033[0m"
COLOURS = {"error": RED, "critical": RED, "exception": RED, "warning": YELLOW}
HIDDEN = frozenset({"event", "level", "timestamp", "service", "exception"})


class LogWriter:
    """Writes whole lines of several processes, one at a time. Safe from any thread."""

    def __init__(self, stream: TextIO | None = None, *, human: bool | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._human = self._stream.isatty() if human is None else human
        self._lock = threading.Lock()

    def line(self, process: str, text: str) -> None:
        """One line that `process` wrote."""
        try:
            entry = json.loads(text)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            entry = {"event": text, "level": "info"}
        self.entry(process, entry)

    def event(self, process: str, event: str, *, level: str = "info", **fields: Any) -> None:
        """One line of our own about `process`."""
        self.entry(process, {"event": event, "level": level, **fields})

    def entry(self, process: str, entry: Mapping[str, Any]) -> None:
        """One log entry."""
        text = self._for_people(process, entry) if self._human else json.dumps({"process": process, **entry})
        with self._lock:
            try:
                self._stream.write(text + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # stderr is gone: logs are lost, serving goes on
                return

    @staticmethod
    def _for_people(process: str, entry: Mapping[str, Any]) -> str:
        level = str(entry.get("level", "info"))
        fields = " ".join(f"{k}={v}" for k, v in entry.items() if k not in HIDDEN)
        colour = COLOURS.get(level, "")
        text = f"{DIM}{process:<22}{RESET} {colour}{entry.get('event', '')}{RESET if colour else ''}"
        if fields:
            text += f" {DIM}{fields}{RESET}"
        if entry.get("exception"):
            text += f"\n{entry['exception']}"
        return text
