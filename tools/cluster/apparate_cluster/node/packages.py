"""What a one-node cluster takes from the machine: Debian packages, rights, kernel features."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..debian import has
from ..debian import install as apt_install
from . import network

BUSYBOX = Path("/bin/busybox")
POLICY = Path("/usr/sbin/policy-rc.d")  # Debian asks it whether a service may start when its package is installed
NO_START = "#!/bin/sh\n# of apparate's cluster-up, while it installs packages\nexit 101\n"
LEAST_FREE_GB = 2  # below 1 GiB the kubelet evicts pods
NAMESPACES = (
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--propagation=private",
)


class CannotRun(RuntimeError):
    """The machine cannot have such a cluster; the text says what it needs."""


def _program(name: str) -> Callable[[], bool]:
    return lambda: has(name)


def _static_busybox() -> bool:
    """Whether busybox runs where there is nothing else: it is all that the images have."""
    return BUSYBOX.exists() and b"/ld-" not in BUSYBOX.read_bytes()[:4096]


NEEDED: dict[str, Callable[[], bool]] = {
    "busybox-static": _static_busybox,
    "containerd": _program("containerd"),
    "containernetworking-plugins": (network.PLUGINS / "bridge").exists,
    "iproute2": _program("ip"),
    "iptables": _program("iptables"),
    "openssl": _program("openssl"),
    "runc": _program("runc"),
    "util-linux": _program("unshare"),
}


def missing() -> list[str]:
    """Names of the Debian packages that are not there, nor what they bring from elsewhere."""
    return [package for package, there in NEEDED.items() if not there()]


def why_not() -> str:
    """Why the machine cannot run a cluster, whatever is installed; empty when it can."""
    if os.geteuid() != 0:
        return "a one-node cluster needs root: its pods have users, mounts and a network of their own"
    if shutil.which("unshare"):
        tried = subprocess.run([*NAMESPACES, "true"], capture_output=True, text=True, check=False)
        if tried.returncode:
            return f"the kernel gives no namespaces here ({tried.stderr.strip()}): a container needs --privileged"
    return ""


def install(say: Callable[[str], None]) -> None:
    """Install what is missing, on Debian. Raises CannotRun with what is needed."""
    lacking = missing()
    if not lacking:
        return
    if not has("apt-get"):
        raise CannotRun(
            f"not found here: what Debian has in the packages {' '.join(lacking)}; install it and try again"
        )
    say(f"installing Debian packages: {' '.join(lacking)}")
    with no_service_starts():
        if failed := apt_install(lacking):
            raise CannotRun(failed)
    if "containerd" in lacking and Path("/run/systemd/system").exists():
        # The cluster has its own, this would wait idle.
        subprocess.run(["systemctl", "disable", "--quiet", "containerd"], check=False)
    if still := missing():
        raise CannotRun(f"installed, yet not usable: {' '.join(still)}")


def check_place(folder: Path) -> None:
    """Raise CannotRun when containers cannot live in `folder`."""
    free = shutil.disk_usage(folder).free / 1e9
    if free < LEAST_FREE_GB:
        raise CannotRun(
            f"{folder} has {free:.1f} GB free, a cluster needs {LEAST_FREE_GB} GB and room for its images: "
            "make room, or choose a folder elsewhere (EEM_CLUSTER_FOLDER)"
        )
    with tempfile.TemporaryDirectory(prefix=".overlay-", dir=folder) as scratch:
        mount = "mkdir l u w m && mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay m"
        command = ["unshare", "--mount", "--propagation=private", "sh", "-c", mount]
        tried = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    if tried.returncode:
        raise CannotRun(
            f"{folder} cannot hold containers, overlayfs does not work there ({tried.stderr.strip()}). In a container "
            "all but volumes lies on an overlayfs already: choose a folder on a volume (EEM_CLUSTER_FOLDER)"
        )


@contextlib.contextmanager
def no_service_starts() -> Iterator[None]:
    """Let no service start when its package is installed meanwhile."""
    if POLICY.exists() and POLICY.read_text() != NO_START:  # the owner of the machine has said something: leave it
        yield
        return
    POLICY.write_text(NO_START)  # or it is there from a time that was cut off
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
