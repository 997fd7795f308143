"""The operator as a child process of its benchmark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import urllib3

from apparate_cluster.processes import free_ports

IDLE_CPU = 0.05  # of one core
IDLE_S = 5.0


class OperatorProcess:
    """The operator as it ships, as a child process."""

    def __init__(self, kubeconfig: Path, log: Path) -> None:
        self._kubeconfig, self.log = kubeconfig, log
        self._process: subprocess.Popen[bytes] | None = None
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
            "EEM_OPERATOR_HOST": "127.0.0.1",
            "EEM_OPERATOR_HEALTH_PORT": str(self._port),
        }
        with self.log.open("ab") as out:
            command = [sys.executable, "-m", "apparate_operator"]
            self._process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
                raise SystemExit(f"the operator is not ready; its log ends:\n{tail}")
            time.sleep(0.2)
        self._calm = (0.0, time.monotonic())

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that takes longer than 20 s."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    close = stop

    def memory_mb(self, field: str) -> float:
        """VmRSS or VmHWM in MB."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) * 1024 / 1e6  # type: ignore[index]

    def idle(self) -> bool:
        """Whether it has used hardly any CPU for some seconds."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(")", 1)[1].split()
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
