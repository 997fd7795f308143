"""Inside the namespaces: starts every process of the cluster, starts again what dies, and obeys a socket.

Settings come as one JSON object in the first argument. Progress goes to standard output, one JSON object a line;
the last one says `ready` or `failed`.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from .. import binaries
from ..control_plane import answers
from ..processes import Child, EndedEarly, until
from . import cgroups, images, network, packages, parts, places
from .folder import Folder
from .plane import NodeControlPlane

READY_WITHIN_S = 120.0
LOOK_S = 0.5
AGAIN_AFTER_S = 2.0  # a process that dies is started again, not faster than this
STOPS_WITHIN_S = 2.0  # an API server with open watches would take its time
CONTAINERD_ENDS_WITHIN_S = 5.0
ASKS_WITHIN_S = 5.0  # who connects has its order ready


@dataclass(frozen=True)
class Settings:
    """What the host's side decides."""

    folder: str
    listener: int  # a file descriptor: the socket on the host's loopback
    port: int  # of that socket
    gpus: int

    def as_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))


class Told(BaseException):
    """The process was asked to end."""


class Supervisor:
    """All processes of one cluster."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.folder = Folder(Path(settings.folder))
        self.plane = NodeControlPlane(self.folder.work / "plane")
        self.plane.logs = self.folder.log
        self.children: list[Child] = []
        self.held: set[str] = set()  # names of those that were stopped on purpose
        self.restarts: dict[str, int] = {}
        self._dead_since: dict[str, float] = {}

    def start(self) -> None:
        """Everything, in the order of need. Raises EndedEarly, TimeoutError, RuntimeError."""
        say("namespaces, cgroup and network")
        places.make(self.folder)
        cgroups.make(self.folder.cgroup)
        network.make()
        containerd = self.child("containerd", parts.containerd(self.folder))
        say("etcd, kube-apiserver, kube-controller-manager")
        self.plane.start()
        self.children[:0] = self.plane.children
        self.plane.kubeconfig_through(self.settings.port, self.folder.kubeconfig)
        say("kubelet, kube-proxy, scheduler, CoreDNS")
        self._start_node()
        self._load_own_images(containerd)
        self._wait()

    def _start_node(self) -> None:
        folder, plane = self.folder, self.plane

        def user(name: str, subject: str) -> Path:
            return plane.user(plane.authority, name, subject)

        node = user("kubelet", f"/O=system:nodes/CN=system:node:{parts.NODE_NAME}")
        self.child("kubelet", parts.kubelet(folder, node, plane.authority.certificate))
        self.child("kube-proxy", parts.kube_proxy(folder, user("kube-proxy", "/CN=system:kube-proxy")))
        self.child("kube-scheduler", parts.scheduler(user("scheduler", "/CN=system:kube-scheduler")))
        self.child("coredns", parts.coredns(folder, plane.kubeconfig))
        listener = self.settings.listener
        forward = parts.python("forward", str(listener), plane.url.rpartition(":")[2])
        self.child("forward", forward, pass_fds=[listener])
        self.child("gpu", parts.python("gpu", str(self.settings.gpus)))
        self.child("volumes", parts.python("volumes", plane.kubeconfig, folder.volumes))
        self.kubectl("apply", "-f", "-", input=json.dumps(_list(*parts.dns_service(), parts.storage_class())))

    def child(self, name: str, command: parts.Command, *, pass_fds: Sequence[int] = ()) -> Child:
        """Start a process that is kept alive from now on."""
        made = Child(name, command, log=self.folder.log / f"{name}.log", pass_fds=pass_fds)
        self.children.append(made)
        return made

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """What kubectl prints. Raises RuntimeError with what it says on stderr."""
        own = (f"--kubeconfig={self.plane.kubeconfig}", f"--cache-dir={self.folder.work / 'kubectl'}")
        command = [str(binaries.find("kubectl")), *own, *arguments]
        answer = subprocess.run(command, input=input, capture_output=True, text=True, timeout=60, check=False)
        if answer.returncode:
            raise RuntimeError(f"kubectl {' '.join(arguments)}: {answer.stderr.strip()}")
        return answer.stdout

    def _load_own_images(self, containerd: Child) -> None:
        def ctr(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
            command = ctr_command(self.folder, *arguments)
            return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

        until(lambda: ctr("version").returncode == 0, containerd, READY_WITHIN_S)
        if {images.PAUSE, images.BUSYBOX} <= set(ctr("images", "ls", "-q").stdout.split()):
            return
        archive = self.folder.work / "images.tar"
        images.write(archive, packages.BUSYBOX)
        answer = ctr("images", "import", archive)
        if answer.returncode:
            raise RuntimeError(f"{archive} was not imported: {answer.stderr.strip()}")

    def _wait(self) -> None:
        say("waiting for the node")
        for name, ready in self._signs().items():
            deadline = time.monotonic() + READY_WITHIN_S
            while not ready():
                self.keep_alive()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{name}: not so after {READY_WITHIN_S:.0f} s\n{self.tails()}")
                time.sleep(0.1)

    def _signs(self) -> dict[str, Callable[[], bool]]:
        return {
            "kube-proxy is healthy": lambda: answers(f"http://127.0.0.1:{parts.PROXY_HEALTH}/healthz"),
            "CoreDNS is ready": lambda: answers(f"http://{network.NODE}:{parts.DNS_READY}/ready"),
            f"node {parts.NODE_NAME} is Ready with {self.settings.gpus} {parts.GPU}": self._node_ready,
        }

    def _node_ready(self) -> bool:
        nodes = json.loads(self.kubectl("get", "nodes", "-o", "json"))["items"]
        for node in nodes:
            conditions = {one["type"]: one["status"] for one in node["status"].get("conditions", [])}
            count = int(node["status"].get("allocatable", {}).get(parts.GPU, "0"))
            return conditions.get("Ready") == "True" and count == self.settings.gpus
        return False

    def tails(self) -> str:
        """The end of every log."""
        return "\n".join(f"--- {child.name} ({child.log}):\n{child.log_tail()}" for child in self.children)

    def keep_alive(self) -> None:
        """Start again what has died, a little later."""
        now = time.monotonic()
        for child in self.children:
            if child.popen.poll() is None or child.name in self.held:
                self._dead_since.pop(child.name, None)
            elif now - self._dead_since.setdefault(child.name, now) > AGAIN_AFTER_S:
                print(f"{child.name} ended with {child.popen.returncode}, started again", file=sys.stderr, flush=True)
                self.restarts[child.name] = self.restarts.get(child.name, 0) + 1
                child.again()

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out {"do": "status"} or {"do": "end"}, or {"do": "stop" or "start", "name": PROCESS}."""
        if order["do"] == "status":
            running = {c.name: c.popen.poll() is None for c in self.children}
            return {"running": running, "restarts": self.restarts, "gpus": self.settings.gpus}
        if order["do"] == "end":
            return {}
        child = next((one for one in self.children if one.name == order["name"]), None)
        if child is None:
            return {"error": f"no process {order['name']}, there are: {', '.join(c.name for c in self.children)}"}
        if order["do"] == "stop":
            self.held.add(child.name)
            child.stop(STOPS_WITHIN_S)
        else:
            self.held.discard(child.name)
            if child.popen.poll() is not None:
                child.again()
        return {}

    def stay(self, control: socket.socket) -> None:
        """Keep all alive and obey, until told to end."""
        control.settimeout(LOOK_S)
        while True:
            self.keep_alive()
            try:
                connection, _ = control.accept()
            except TimeoutError:
                continue
            if self._answer(connection).get("do") == "end":
                raise Told

    def _answer(self, connection: socket.socket) -> dict[str, Any]:
        """Obey what comes through a connection, and return it; who asks may be killed at any moment."""
        order: dict[str, Any] = {}
        connection.settimeout(ASKS_WITHIN_S)
        try:
            with connection, connection.makefile("rw") as stream:
                order = dict(json.loads(stream.readline()))
                stream.write(json.dumps(self.obey(order)) + "\n")
        except (OSError, ValueError, LookupError, TypeError) as error:
            print(f"an order came to nothing: {error!r}", file=sys.stderr, flush=True)
        return order

    def stop(self) -> None:
        """Let containerd close its files; all others end with the namespace."""
        for child in self.children:
            if child.name == "containerd":
                child.stop(CONTAINERD_ENDS_WITHIN_S)


def ctr_command(folder: Folder, *arguments: str | Path) -> list[str]:
    """A command of containerd's own tool, in the room of Kubernetes; works from the host too."""
    return ["ctr", "--address", str(folder.containerd), "--namespace", "k8s.io", *map(str, arguments)]


def say(text: str, **more: object) -> None:
    """One line of progress."""
    print(json.dumps({"progress": text, **more}), flush=True)


def _list(*items: object) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def _told(number: int, frame: FrameType | None) -> None:
    raise Told


def main() -> int:
    """Run until told to end; returns the exit status."""
    supervisor = Supervisor(Settings(**json.loads(sys.argv[1])))
    signal.signal(signal.SIGTERM, _told)
    with socket.socket(socket.AF_UNIX) as control:
        try:
            supervisor.start()
            control.bind(str(supervisor.folder.control))
            control.listen()
            say("ready", ready=True)
            os.dup2(2, 1)  # nobody reads progress from now on
            supervisor.stay(control)
        except Told:
            supervisor.stop()
            return 0
        except (RuntimeError, TimeoutError, OSError, subprocess.SubprocessError) as error:
            tails = "" if isinstance(error, EndedEarly | TimeoutError) else f"\n{supervisor.tails()}"
            say("failed", failed=f"{error}{tails}")
            return 1
    return 0
