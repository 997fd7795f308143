"""The operator as a child process of its benchmark."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import urllib3

from apparate_cluster.processes import Child, free_ports, until

IDLE_CPU = 0.05  # of one core
IDLE_S = 5.0
START_WITHIN_S = 60


class OperatorProcess:
    """The operator as it ships, as a child process."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._kubeconfig, self.log = kubeconfig, log
        self._child: Child | None = None
        self._port = 0
        self._calm = (0.0, 0.0)  # CPU seconds and when they were first that many

    def start(self) -> None:
        """Start it and wait until it is ready."""
        (self._port,) = free_ports(1)
        environ = {
            **os.environ,
            "KUBECONFIG": str(self._kubeconfig),
            "EEM_OPERATOR_WORKER_IMAGE": "apparate-worker:bench",
            "EEM_OPERATOR_REDIS_URL": "redis://redis:6379",
            "EEM_OPERATOR_RESYNC_SECONDS": "45",  # so that the quiet minute has one: looking anew writes nothing either
            "EEM_OPERATOR_HOST": "127.0.0.1",
            "EEM_OPERATOR_HEALTH_PORT": str(self._port),
        }
        self._child = Child("operator", [sys.executable, "-m", "apparate_operator"], log=self.log, environ=environ)
        until(self._answers, self._child, START_WITHIN_S)
        self._calm = (0.0, time.monotonic())

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that takes too long."""
        if self._child is not None:
            self._child.stop(20)

    close = stop

    def log_tail(self) -> str:
        """The last lines that it logged."""
        return self._child.log_tail() if self._child is not None else ""

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._child is not None
        return self._child.popen.pid

    def memory_mb(self, field: str) -> float:
        """VmRSS or VmHWM in MB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024 / 1e6  # type: ignore[index]

    def idle(self) -> bool:
        """Whether it has used hardly any CPU for some seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        used, now = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), time.monotonic()
        before, since = self._calm
        if used - before > IDLE_CPU * max(now - since, 1):
            self._calm = (used, now)
            return False
        return now - since > IDLE_S

    def _answers(self) -> bool:
        try:
            return (
                urllib3.request("GET", f"http://127.0.0.1:{self._port}/readyz", timeout=2, retries=False).status == 200
            )
        except urllib3.exceptions.HTTPError:
            return False
