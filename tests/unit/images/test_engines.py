"""Which engine builds the images, and with what command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from apparate_images import engines, images, place


def an_engine(folder: Path, name: str, status: int) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\nexit {status}\n")
    program.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}")
    return tmp_path


def test_an_engine_that_answers_is_used(path: Path) -> None:
    an_engine(path, "podman", 0)
    assert engines.choose("auto") == "podman"


def test_a_client_whose_daemon_does_not_answer_is_not(path: Path) -> None:
    an_engine(path, "docker", 1)
    assert engines.choose("auto") == "buildah"


def test_what_is_asked_for_is_used_whatever_answers(path: Path) -> None:
    an_engine(path, "docker", 0)
    assert engines.choose("buildah") == "buildah"


def test_an_engine_gets_the_base_and_the_choices_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGE_BASE", "python@sha256:0123")
    monkeypatch.setenv("IMAGE_ACCELERATOR", "cpu")
    command = engines.build_command("docker", "apparate-worker", ["--secret=id=ca,src=/ca"])
    assert command[:3] == ["docker", "build", "--secret=id=ca,src=/ca"]
    assert {"--build-arg=BASE=python@sha256:0123", "--build-arg=ACCELERATOR=cpu"} <= set(command)
    assert command[-2:] == [f"--tag={images.reference('apparate-worker')}", str(images.ROOT)]


def test_the_demo_builds_on_the_worker_of_the_same_version() -> None:
    command = engines.build_command("docker", "apparate-demo", [])
    assert f"--build-arg=PARENT={images.reference('apparate-worker')}" in command


def test_a_build_without_room_is_refused_before_it_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(place, "FIRST_GB", 10**6)
    monkeypatch.setattr(place, "LATER_GB", 0)
    with pytest.raises(place.ImageFailed, match=r"GB free, a build needs 1000000 GB.*XDG_CACHE_HOME"):
        place.check_room()
    (place.root() / "archives").mkdir()
    (place.root() / "archives" / "apparate-worker-dependencies-12.tar").touch()
    place.check_room()


def test_arguments_for_tests_do_not_reach_the_targets_that_these_need() -> None:
    command = ["make", "--dry-run", "--no-print-directory", "test-e2e", "ARGS=-k redis"]
    said = subprocess.run(command, cwd=images.ROOT, capture_output=True, text=True, check=True).stdout
    assert [line.rpartition("tests/")[2] for line in said.splitlines() if "-k redis" in line] == ["e2e -k redis"]
