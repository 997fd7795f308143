"""The parts of a one-node cluster that need no cluster: its folder, and the images that are made here."""

from __future__ import annotations

import hashlib
import json
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from apparate_cluster.node import images
from apparate_cluster.node.cluster import OneNodeCluster
from apparate_cluster.node.folder import SOCKET_BYTES, Folder, UnusableFolder


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    busybox = tmp_path / "busybox"
    busybox.write_text("#!/bin/sh\necho sh\necho wget\necho busybox\n")
    busybox.chmod(0o755)
    images.write(tmp_path / "images.tar", busybox)
    return tmp_path / "images.tar"


def test_an_archive_names_its_images(archive: Path) -> None:
    with tarfile.open(archive) as content:
        assert [one["RepoTags"] for one in _json(content, "manifest.json")] == [[images.PAUSE], [images.BUSYBOX]]


def test_the_digests_of_layers_are_those_of_their_content(archive: Path) -> None:
    with tarfile.open(archive) as content:
        for image in _json(content, "manifest.json"):
            stored = content.extractfile(image["Layers"][0])
            assert stored is not None
            digest = hashlib.sha256(stored.read()).hexdigest()
            assert _json(content, image["Config"])["rootfs"]["diff_ids"] == [f"sha256:{digest}"]


def test_the_shell_image_has_every_command_of_busybox(archive: Path) -> None:
    with tarfile.open(archive) as content:
        layer = content.extractfile(_json(content, "manifest.json")[1]["Layers"][0])
        with tarfile.open(fileobj=layer) as files:
            assert {"bin/busybox", "bin/sh", "bin/wget"} <= set(files.getnames())


def test_a_folder_that_the_namespace_hides_is_refused() -> None:
    with pytest.raises(UnusableFolder, match="cannot live in /var/lib"):
        Folder(Path("/var/lib/apparate-test")).make()


def test_a_folder_whose_sockets_would_have_too_long_a_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableFolder, match=f"longer than the {SOCKET_BYTES} bytes"):
        Folder(tmp_path / ("x" * SOCKET_BYTES)).make()


def test_a_folder_is_private(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "c")
    try:
        folder.make()
    except UnusableFolder as error:
        pytest.skip(str(error))  # the temporary folder itself has a long path
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_two_folders_have_two_cgroups(tmp_path: Path) -> None:
    assert Folder(tmp_path / "one").cgroup != Folder(tmp_path / "two").cgroup


def test_down_of_what_never_was_makes_no_folder(tmp_path: Path) -> None:
    OneNodeCluster(tmp_path / "none").down()
    assert not (tmp_path / "none").exists()


def _json(archive: tarfile.TarFile, name: str) -> Any:
    stored = archive.extractfile(name)
    assert stored is not None
    return json.load(stored)
