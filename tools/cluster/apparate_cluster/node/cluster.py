"""A one-node cluster from the host's side: up, status, load images, restart the API server, down."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import binaries, build
from ..debian import search_path
from . import cgroups, loading, packages
from .folder import Folder, closed, default_folder
from .supervisor import Settings

BINARIES = (*binaries.CONTROL_PLANE, "kube-scheduler", "kubelet", "kube-proxy", "coredns")
GPUS = 2
UP_WITHIN_S = 400.0  # the supervisor bounds each of its waits; this is for one that says nothing
DOWN_WITHIN_S = 15.0
ANSWER_WITHIN_S = 60.0
READY_WITHIN_S = 60.0


class NotUp(RuntimeError):
    """The cluster does not run, or did not become ready; the text says why."""


def missing() -> str:
    """What a cluster lacks on this machine, for tests; empty when it can start at once."""
    if reason := packages.why_not():
        return reason
    if lacking := packages.missing():
        return f"Debian packages {' '.join(lacking)} are missing: make cluster-up installs them"
    try:
        for name in BINARIES:
            binaries.find(name)
    except binaries.MissingBinary as error:
        return str(error)
    return ""


class OneNodeCluster:
    """The cluster of one folder. `kubeconfig` has full rights and works from the host."""

    def __init__(self, folder: Path | None = None, *, say: Callable[[str], None] = lambda text: None) -> None:
        self.folder = Folder(folder or default_folder())
        self.kubeconfig = self.folder.kubeconfig
        self.state = self.folder.path
        self._say = say
        self._process: subprocess.Popen[str] | None = None

    @property
    def bin(self) -> Path:
        """A folder with kubectl, helm and the other tools that are built."""
        return binaries.link_into(self.folder.path / "bin")

    @property
    def pid(self) -> int:
        """The process whose end is the end of the cluster. Raises NotUp."""
        if not self.runs():
            raise NotUp(f"no cluster runs from {self.state}: make cluster-up")
        return int(self.folder.pid.read_text())

    def runs(self) -> bool:
        """Whether it lives, ready or not."""
        if self._process:
            self._process.poll()
        return self.folder.runs()

    def up(self, *, gpus: int | None = None) -> bool:
        """Make it ready, and return whether that took a start; without `gpus` one that runs may have any number.

        Raises NotUp, CannotRun, UnusableFolder, BuildFailed.
        """
        if reason := packages.why_not() or hidden():
            raise packages.CannotRun(reason)
        self.folder.make()
        with self._turn():
            if self.runs():
                if there := self._answers():
                    if gpus not in (None, there["gpus"]):
                        raise NotUp(f"it runs with {there['gpus']} pretended GPUs, not {gpus}: make cluster-down first")
                    return False
                self._say("a start that was broken off, or hangs: starting anew")
                self._end()
            packages.install(self._say)
            packages.check_place(self.folder.path)
            build.build(BINARIES)
            cgroups.remove(self.folder.cgroup)  # of a life that was cut off
            self.folder.renew()
            self._start(GPUS if gpus is None else gpus)
        return True

    def _answers(self) -> dict[str, Any] | None:
        """Its status; nothing when it does not answer."""
        with contextlib.suppress(NotUp):
            return self.status()
        return None

    def down(self) -> None:
        """End it and forget all but the images. Does nothing when it is down."""
        if not self.folder.ours():
            return
        with self._turn():
            self._end()
            cgroups.remove(self.folder.cgroup)
            self.folder.clear()

    def forget(self) -> None:
        """`down`, and remove the folder with its images and logs. One that was never a cluster's stays."""
        if self.folder.ours():
            self.down()
            shutil.rmtree(self.folder.path, ignore_errors=True)

    def status(self) -> dict[str, Any]:
        """{"running": {process: bool}, "restarts": {process: times}, "gpus": count}. Raises NotUp."""
        return self._order({"do": "status"})

    def load(self, *archives: Path) -> None:
        """Import archives of images, as docker or buildah write them; pods use them by their names.

        What is there already is left out. Raises NotUp, NotLoaded.
        """
        self.pid  # noqa: B018  # raises when there is none
        loading.load(self.folder, archives, self._say)

    def stop_process(self, name: str) -> None:
        """Stop a process of the cluster, such as kube-apiserver, until start_process."""
        self._order({"do": "stop", "name": name})

    def start_process(self, name: str) -> None:
        """Start what stop_process stopped."""
        self._order({"do": "start", "name": name})

    def restart_api_server(self, seconds_down: float) -> None:
        """Take the API server away for so long, and return when it is ready again."""
        self.stop_process("kube-apiserver")
        time.sleep(seconds_down)
        self.start_process("kube-apiserver")
        deadline = time.monotonic() + READY_WITHIN_S
        command = [str(binaries.find("kubectl")), f"--kubeconfig={self.kubeconfig}", "get", "--raw", "/readyz"]
        while subprocess.run(command, capture_output=True, timeout=READY_WITHIN_S, check=False).returncode:
            if time.monotonic() > deadline:
                raise NotUp(f"the API server is not ready {READY_WITHIN_S} s after its start; logs: {self.folder.log}")
            time.sleep(0.2)

    def _start(self, gpus: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        with listener, self.folder.life.open("a") as life, (self.folder.log / "supervisor.log").open("w") as log:
            fcntl.flock(life, fcntl.LOCK_EX)
            settings = Settings(str(self.folder.path), listener.fileno(), listener.getsockname()[1], gpus)
            self._process = subprocess.Popen(
                [*packages.NAMESPACES, sys.executable, "-m", f"{__package__}.init", settings.as_json()],
                env=_environ(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                pass_fds=(listener.fileno(), life.fileno()),
            )
        try:
            self.folder.pid.write_text(str(self._process.pid))
            self._follow(self._process)
        except BaseException:
            self._end()
            cgroups.remove(self.folder.cgroup)
            raise

    def _follow(self, process: subprocess.Popen[str]) -> None:
        """Pass progress on until the cluster is ready. Raises NotUp."""
        assert process.stdout is not None
        deadline = time.monotonic() + UP_WITHIN_S
        with process.stdout as lines:
            while True:
                ready, _, _ = select.select([lines], [], [], max(0.0, deadline - time.monotonic()))
                line = lines.readline() if ready else ""
                if not line:
                    log = (self.folder.log / "supervisor.log").read_text()
                    raise NotUp(f"the cluster's supervisor {'ended' if ready else 'is silent'}; it said:\n{log}")
                said = json.loads(line)
                if "failed" in said:
                    raise NotUp(said["failed"])
                if "ready" in said:
                    return
                self._say(said["progress"])

    def _end(self) -> None:
        if not self.runs():
            return
        with contextlib.suppress(NotUp):
            self._order({"do": "end"})
            if self._ended(DOWN_WITHIN_S):
                return
        with contextlib.suppress(ProcessLookupError, NotUp):  # it may end just now
            os.kill(self.pid, signal.SIGKILL)  # the kernel kills the rest with it
        if not self._ended(DOWN_WITHIN_S):
            raise NotUp(f"process {self.pid} was killed and still lives")

    def _ended(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while self.runs():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        if self._process is not None:
            self._process.wait()  # it gave its lock up a moment ago
        return True

    def _order(self, order: dict[str, Any]) -> dict[str, Any]:
        """What the supervisor answers to an order. Raises NotUp."""
        try:
            with socket.socket(socket.AF_UNIX) as control:
                control.settimeout(ANSWER_WITHIN_S)
                control.connect(str(self.folder.control))
                with control.makefile("rw") as stream:
                    stream.write(json.dumps(order) + "\n")
                    stream.flush()
                    answer = json.loads(stream.readline() or '{"error": "it ended meanwhile"}')
        except OSError as error:
            raise NotUp(f"no cluster answers at {self.folder.control} ({error}): make cluster-up") from None
        if "error" in answer:
            raise NotUp(answer["error"])
        return dict(answer)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with self.folder.turn.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._say(f"waiting for another start or stop of {self.state}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def hidden() -> str:
    """Why processes of a cluster would not find what they run; empty when they will."""
    for path, moved in (
        (Path(sys.prefix), "have the checkout elsewhere"),
        (Path(__file__).resolve(), "have the checkout elsewhere"),
        (binaries.cache_root(), "set XDG_CACHE_HOME"),
    ):
        if place := closed(path):
            return f"{path} lies in {place}, of which a cluster has its own: {moved}"
    return ""


def _environ() -> dict[str, str]:
    """The environment without proxies, which do not lead into the cluster's network."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, "PATH": search_path(), "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
