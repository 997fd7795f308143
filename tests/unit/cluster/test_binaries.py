"""Where built tools lie, and what decides that they are built anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from apparate_cluster import binaries
from apparate_cluster.binaries import ALL, Binary, built, find, link_into


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    return tmp_path / "cache"


def an_executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


@pytest.mark.parametrize("binary", ALL, ids=lambda binary: binary.name)
def test_the_version_in_the_table_is_the_one_that_go_builds(binary: Binary) -> None:
    pinned = dict(re.findall(r"^\s*(?:require )?(\S+) (v\S+)", (binary.sources / "go.mod").read_text(), re.MULTILINE))
    module = max((name for name in pinned if binary.package.startswith(name)), key=len)
    assert pinned[module] == binary.version


@pytest.mark.parametrize("binary", ALL, ids=lambda binary: binary.name)
def test_every_module_pins_the_sums_of_what_it_is_made_of(binary: Binary) -> None:
    assert (binary.sources / "go.sum").stat().st_size > 1000


def test_a_changed_pin_asks_for_a_new_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binaries, "MODULES", tmp_path)
    binaries.key.cache_clear()
    (tmp_path / "etcd").mkdir()
    (tmp_path / "etcd/go.mod").write_text("module x")
    (tmp_path / "etcd/go.sum").write_text("one")
    etcd = binaries.BY_NAME["etcd"]
    before = built(etcd)
    (tmp_path / "etcd/go.sum").write_text("two")
    binaries.key.cache_clear()
    assert built(etcd) != before
    binaries.key.cache_clear()


def test_a_tool_that_is_not_built_names_the_command_that_builds_it() -> None:
    with pytest.raises(binaries.MissingBinary, match=r"etcd v3\.\S+ is not built yet: make cluster-tools"):
        find("etcd")


def test_kubebuilder_assets_come_before_what_was_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    an_executable(built(binaries.BY_NAME["etcd"]))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path / "assets"))
    assert find("etcd") == built(binaries.BY_NAME["etcd"])
    own = an_executable(tmp_path / "assets" / "etcd")
    assert find("etcd") == own


def test_the_link_folder_has_what_is_built_and_nothing_else(tmp_path: Path) -> None:
    kubectl = an_executable(built(binaries.BY_NAME["kubectl"]))
    folder = link_into(tmp_path / "bin")
    assert {one.name: one.readlink() for one in folder.iterdir()} == {"kubectl": kubectl}
    kubectl.unlink()
    link_into(folder)
    assert list(folder.iterdir()) == []
