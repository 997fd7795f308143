"""The folder of one cluster: what lies where, and whether a cluster runs from it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

CLOSED = ("/run", "/var/lib", "/var/log", "/proc", "/sys", "/dev")  # the namespace has its own in these places
SOCKET_BYTES = 100  # the kernel's limit for the path of a unix socket is 107


class UnusableFolder(RuntimeError):
    """A cluster cannot live in the folder; the text says why, and what to do."""


class Folder:
    """Paths of one cluster. `images` outlives `down`; `work` is of one life of the cluster; `log` of the last one."""

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().resolve()
        self.images = self.path / "containerd"
        self.work = self.path / "work"
        self.log = self.path / "log"
        self.volumes = self.work / "volumes"
        self.kubeconfig = self.path / "kubeconfig"
        self.control = self.work / "control.sock"
        self.containerd = self.work / "containerd.sock"
        self.pid = self.path / "pid"
        self.life = self.path / "life"  # locked by the processes of the cluster as long as they live
        self.turn = self.path / "turn"  # locked by who starts or stops it

    @property
    def cgroup(self) -> str:
        """The cgroup that holds every pod of this cluster."""
        return f"/apparate-{hashlib.sha256(bytes(self.path)).hexdigest()[:10]}"

    def make(self) -> None:
        """Make the folder, private to its owner. Raises UnusableFolder."""
        if inside := closed(self.path):
            raise UnusableFolder(
                f"{self.path}: a cluster cannot live in {inside}, choose a folder elsewhere (EEM_CLUSTER_FOLDER)"
            )
        if len(bytes(self.containerd)) > SOCKET_BYTES:
            raise UnusableFolder(f"{self.containerd}: longer than the {SOCKET_BYTES} bytes a socket's path may have")
        if self.path.exists() and not self.ours() and any(self.path.iterdir()):
            raise UnusableFolder(f"{self.path} is not empty and no cluster's: choose another (EEM_CLUSTER_FOLDER)")
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def ours(self) -> bool:
        """Whether a cluster lives here or did: then what is in it may be removed."""
        return self.turn.exists()

    def renew(self) -> None:
        """Make it ready for a new life of the cluster, which has the images of the last one."""
        self.clear()
        shutil.rmtree(self.log, ignore_errors=True)
        for fresh in (self.images, self.volumes, self.work / "lib", self.log / "system"):
            fresh.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove all but images and logs."""
        shutil.rmtree(self.work, ignore_errors=True)
        for old in (self.pid, self.kubeconfig):
            old.unlink(missing_ok=True)

    def runs(self) -> bool:
        """Whether a cluster lives here, ready or not."""
        try:
            with self.life.open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def closed(path: Path) -> str:
    """The place of which the namespace has its own, when `path` is in it; else empty."""
    return next((place for place in CLOSED if path.is_relative_to(place)), "")


def default_folder() -> Path:
    """EEM_CLUSTER_FOLDER, or a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("EEM_CLUSTER_FOLDER") or Path(cache) / "apparate" / "cluster")
