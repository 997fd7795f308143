"""The network of the namespace: one bridge that has the node's address, one for pods. Nothing leads to the host."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

NODE = "10.99.0.1"
PODS = "10.244.0.0/16"
SERVICES = "10.96.0.0/16"
DNS = "10.96.0.10"  # where Kubernetes distributions have it
SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/bridge/bridge-nf-call-iptables": "1",  # so that a Service's answer finds its way back on the same bridge
}
PLUGINS = Path("/usr/lib/cni")


def make() -> None:
    """Links, routes and settings. Raises RuntimeError with what `ip` said."""
    _ip("link", "set", "lo", "up")
    _ip("link", "add", "node", "type", "bridge")  # not every kernel has the type dummy
    _ip("addr", "add", f"{NODE}/32", "dev", "node")
    _ip("link", "set", "node", "up")
    _ip("route", "add", SERVICES, "dev", "node", "src", NODE)  # kube-proxy redirects what takes it
    load_module("br_netfilter", Path("/proc/sys/net/bridge"))
    for name, value in SETTINGS.items():
        (Path("/proc/sys") / name).write_text(value)


def write_cni(folder: Path) -> None:
    """What containerd does for the network of a new pod."""
    folder.mkdir(parents=True, exist_ok=True)
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipMasq": False,  # nothing outside can be reached
        "ipam": {"type": "host-local", "ranges": [[{"subnet": PODS}]]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    chain = {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}
    (folder / "10-pods.conflist").write_text(json.dumps(chain))


def load_module(name: str, sign: Path) -> None:
    """Have a module of the kernel whose presence `sign` shows: most load by themselves when asked for, some do not.

    Raises RuntimeError when it cannot be had.
    """
    if not sign.exists():
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(["modprobe", name], capture_output=True, check=False)
    if not sign.exists():
        raise RuntimeError(
            f"the kernel has no module {name} ({sign} is missing): modprobe {name} on the machine itself"
        )


def _ip(*arguments: str) -> None:
    answer = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {answer.stderr.strip()}")
