"""The parts of a one-node cluster that need no cluster: its folder, and the images that are made here."""

from __future__ import annotations

import hashlib
import io
import json
import socket
import stat
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apparate_cluster.node import images, loading, network, packages
from apparate_cluster.node.cluster import OneNodeCluster
from apparate_cluster.node.folder import SOCKET_BYTES, Folder, UnusableFolder
from apparate_cluster.node.supervisor import Settings, Supervisor, Told


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


def test_a_folder_is_private() -> None:
    with tempfile.TemporaryDirectory() as short:  # that of pytest may be longer than a socket's path may be
        folder = Folder(Path(short) / "c")
        folder.make()
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_two_folders_have_two_cgroups(tmp_path: Path) -> None:
    assert Folder(tmp_path / "one").cgroup != Folder(tmp_path / "two").cgroup


def test_down_of_what_never_was_makes_no_folder(tmp_path: Path) -> None:
    OneNodeCluster(tmp_path / "none").down()
    assert not (tmp_path / "none").exists()


def test_a_folder_with_other_things_in_it_is_not_taken_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis").write_text("mine")
    with pytest.raises(UnusableFolder, match="not empty and no cluster's"):
        Folder(tmp_path).make()
    OneNodeCluster(tmp_path).forget()
    assert (tmp_path / "work" / "thesis").read_text() == "mine"


def test_a_folder_that_a_cluster_had_is_taken_again_and_removed(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "c")
    (tmp_path / "c").mkdir()
    folder.turn.touch()
    folder.images.mkdir()
    folder.make()
    OneNodeCluster(tmp_path / "c").forget()
    assert not (tmp_path / "c").exists()


def test_a_module_that_the_kernel_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"no module no_such_module .*modprobe no_such_module"):
        network.load_module("no_such_module", tmp_path / "sign")


def test_an_archive_in_the_oci_layout_says_what_it_holds(tmp_path: Path, archive: Path) -> None:
    image = {"digest": "sha256:12", "annotations": {loading.NAME: "localhost/one:1"}}
    index = json.dumps({"manifests": [image]}).encode()
    with tarfile.open(tmp_path / "oci.tar", "w") as content:
        entry = tarfile.TarInfo("index.json")
        entry.size = len(index)
        content.addfile(entry, io.BytesIO(index))
    assert loading.names(tmp_path / "oci.tar") == {"localhost/one:1": "sha256:12"}
    assert loading.names(archive) == {}


def test_images_without_room_are_refused_before_any_is_loaded(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.images.mkdir()
    loading.check_room(folder, 0)
    with pytest.raises(loading.NotLoaded, match=r"GB free and these images need 2002.0 GB.*EEM_CLUSTER_FOLDER"):
        loading.check_room(folder, 1000 * 10**9)


@pytest.mark.parametrize(("left", "after"), [("", False), (packages.NO_START, False), ("#!/bin/sh\nexit 0\n", True)])
def test_services_do_not_start_meanwhile_and_only_the_owners_own_policy_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, after: bool
) -> None:
    policy = tmp_path / "policy-rc.d"
    if left:
        policy.write_text(left)
    monkeypatch.setattr(packages, "POLICY", policy)
    with packages.no_service_starts():
        assert policy.read_text() == (left if after else packages.NO_START)
    assert policy.exists() == after


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Path]:
    """Where a supervisor without processes listens; it ends with the test, when it has not before."""
    address, ended = tmp_path / "control.sock", []
    supervisor = Supervisor(Settings(str(tmp_path), 0, 0, 0))

    def stay(listener: socket.socket) -> None:
        try:
            supervisor.stay(listener)
        except Told:
            ended.append("told")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        thread = threading.Thread(target=stay, args=(listener,))
        thread.start()
        yield address
        ask(address, '{"do": "end"}')
        thread.join(10)
    assert ended == ["told"]


def ask(address: Path, text: str) -> str:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(address))
        connection.sendall(f"{text}\n".encode())
        with connection.makefile() as stream:
            return stream.readline()


@pytest.mark.parametrize("said", ["", "{", '{"do": "stop"}\n', "[]\n"])
def test_a_cluster_outlives_who_asks_and_vanishes_or_talks_nonsense(control: Path, said: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(control))
        connection.sendall(said.encode())
    assert json.loads(ask(control, '{"do": "status"}')) == {"running": {}, "restarts": {}, "gpus": 0}


def _json(archive: tarfile.TarFile, name: str) -> Any:
    stored = archive.extractfile(name)
    assert stored is not None
    return json.load(stored)
