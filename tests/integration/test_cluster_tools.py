"""How the project's Kubernetes tools are built, with a small script in the place of the Go compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apparate_cluster.binaries import BY_NAME, key
from support.processes import a_process

ROOT = Path(__file__).resolve().parents[2]
GO = """#!/bin/sh
[ "$1" = env ] && { echo go1.99.0; exit; }
echo build >>"$CALLS"
sleep "${SLOW:-0}"
while [ "$1" != -o ]; do shift; done
mkdir -p "$(dirname "$2")"
[ -n "$BROKEN" ] && { echo half >"$2"; echo "undefined: frobnicate" >&2; exit 2; }
echo built >"$2"
"""


class Builder:
    """The build command with a cache and a Go of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls = folder, folder / "calls"
        go = folder / "bin" / "go"
        go.parent.mkdir()
        go.write_text(GO)
        go.chmod(0o755)
        self.command = [sys.executable, "-m", "apparate_cluster.build"]
        self.environ = {
            "PATH": f"{go.parent}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": str(ROOT / "tools/cluster"),
            "CALLS": str(self.calls),
            "KUBEBUILDER_ASSETS": "",
        }

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environ, **environ}
        return subprocess.run(
            [*self.command, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    @property
    def cache(self) -> Path:
        return self.folder / "cache" / "apparate" / "tools"

    def builds(self) -> int:
        return len(self.calls.read_text().splitlines()) if self.calls.exists() else 0

    def cached(self) -> list[str]:
        return sorted(one.name for one in self.cache.iterdir() if one.name != "lock")


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    return Builder(tmp_path)


def test_a_tool_is_built_once(builder: Builder) -> None:
    first, second = builder.run("etcd"), builder.run("etcd")
    assert (first.returncode, second.returncode, second.stderr, builder.builds()) == (0, 0, "", 1)


def test_progress_says_what_is_built_and_how_long_it_took(builder: Builder) -> None:
    said = builder.run("etcd", "kubectl").stderr
    assert "2 to build" in said and "1 of 2: etcd" in said and "2 of 2: kubectl done in" in said


def test_links_point_to_what_was_built(builder: Builder) -> None:
    links = builder.folder / "links"
    builder.run("--links", str(links), "etcd")
    assert (links / "etcd").read_text() == "built\n"


def test_a_failed_build_says_what_go_said_and_leaves_nothing(builder: Builder) -> None:
    failed = builder.run("etcd", BROKEN="yes")
    assert failed.returncode == 1
    assert "etcd did not build" in failed.stderr and "undefined: frobnicate" in failed.stderr
    assert builder.cached() == []


def test_two_builds_at_once_build_once(builder: Builder) -> None:
    command = [*builder.command, "etcd"]
    with a_process(command, {**builder.environ, "SLOW": "1"}) as one, a_process(command, builder.environ) as other:
        assert (one.wait(), other.wait()) == (0, 0)
    assert (builder.builds(), builder.cached()) == (1, [key(BY_NAME["etcd"])])


def test_an_unknown_tool_is_refused_with_the_known_ones(builder: Builder) -> None:
    refused = builder.run("minikube")
    assert refused.returncode == 2 and "unknown: minikube" in refused.stderr and "kube-apiserver" in refused.stderr


def test_what_kubebuilder_assets_has_is_not_built(builder: Builder) -> None:
    assets = builder.folder / "assets"
    assets.mkdir()
    (assets / "etcd").touch(mode=0o755)
    assert builder.run("etcd", KUBEBUILDER_ASSETS=str(assets)).returncode == 0
    assert builder.builds() == 0
