"""Which binaries there are, where each comes from, and where a built one lies.

Each Go module folder beside this package (`tools/cluster/go/<module>`) pins one tool and all that it is made of in its
go.mod and go.sum. A built binary lies outside the tree, in a folder named after the version and what it was made
from, so checkouts share it and a change of a pin builds anew.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MODULES = Path(__file__).resolve().parents[1] / "go"
KUBERNETES = "v1.36.3"
CGO = False  # so that nobody needs a C compiler
KUBERNETES_FLAG = f"-X k8s.io/component-base/version.gitVersion={KUBERNETES}"


def helm_flags(*variables: str) -> str:
    """Helm 3 believes in Kubernetes 1.20 unless its linker is told which one it was built for."""
    _, minor, _ = KUBERNETES.split(".")
    rooms = ("pkg/chartutil", "pkg/lint/rules")
    told = [f"-X helm.sh/helm/v3/{r}.k8sVersion{k}={v}" for r in rooms for k, v in (("Major", "1"), ("Minor", minor))]
    return " ".join([*told, *(f"-X {variable}" for variable in variables)])


@dataclass(frozen=True)
class Binary:
    """One executable: the Go package that it is built from, and how long that takes on two cores from nothing."""

    name: str
    module: str
    package: str
    version: str
    cold_s: int
    linker_flags: str = ""

    @property
    def sources(self) -> Path:
        """The folder with the go.mod and go.sum that pin this binary."""
        return MODULES / self.module


def _kubernetes(name: str, cold_s: int) -> Binary:
    return Binary(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", KUBERNETES, cold_s, KUBERNETES_FLAG)


ALL = (
    Binary("etcd", "etcd", "go.etcd.io/etcd/server/v3", "v3.6.16", 60),
    _kubernetes("kube-apiserver", 300),
    _kubernetes("kubectl", 20),
    _kubernetes("kube-controller-manager", 90),
    Binary(
        "helm", "helm", "helm.sh/helm/v4/cmd/helm", "v4.3.1", 90, "-X helm.sh/helm/v4/internal/version.version=v4.3.1"
    ),
    Binary(
        "helm3",
        "helm-3",
        "helm.sh/helm/v3/cmd/helm",
        "v3.22.0",
        75,
        helm_flags("helm.sh/helm/v3/internal/version.version=v3.22.0"),
    ),
    Binary(
        "helm-unittest",
        "helm-unittest",
        "github.com/helm-unittest/helm-unittest/cmd/helm-unittest",
        "v1.1.2",
        35,
        helm_flags(),
    ),
    Binary("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "v0.8.0", 150),
    _kubernetes("kube-scheduler", 10),
    _kubernetes("kube-proxy", 25),
    _kubernetes("kubelet", 210),
    Binary("coredns", "coredns", "github.com/coredns/coredns", "v1.13.1", 210),
)
BY_NAME = {binary.name: binary for binary in ALL}
CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
TESTS = (*CONTROL_PLANE, "helm", "helm3", "helm-unittest")


class MissingBinary(RuntimeError):
    """A binary is neither built nor given by KUBEBUILDER_ASSETS."""


def cache_root() -> Path:
    """Where built binaries of all checkouts lie."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "apparate" / "tools"


@cache
def key(binary: Binary) -> str:
    """Name of the folder for this binary: version, and a hash of everything that decides what is built."""
    made_from = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        made_from.update((binary.sources / name).read_bytes())
    made_from.update(f"{binary.package} {binary.linker_flags} {CGO}".encode())
    return f"{binary.name}-{binary.version}-{made_from.hexdigest()[:12]}"


def built(binary: Binary) -> Path:
    """Where the built binary lies, or will lie."""
    return cache_root() / key(binary) / binary.name


def find(name: str) -> Path:
    """Path of an executable: from the folder KUBEBUILDER_ASSETS when that has it, else the built one.

    Raises MissingBinary when there is none yet.
    """
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and os.access(Path(assets) / name, os.X_OK):
        return Path(assets) / name
    path = built(BY_NAME[name])
    if not path.exists():
        raise MissingBinary(f"{name} {BY_NAME[name].version} is not built yet: make cluster-tools")
    return path


def link_into(folder: Path) -> Path:
    """Fill `folder` with a link for each binary that there is, under its own name; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for binary in ALL:
        link = folder / binary.name
        try:
            target = find(binary.name)
        except MissingBinary:
            link.unlink(missing_ok=True)
            continue
        if link.is_symlink() and link.readlink() == target:
            continue
        fresh = folder / f".{binary.name}.{os.getpid()}"
        fresh.symlink_to(target)
        fresh.replace(link)
    return folder
