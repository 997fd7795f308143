"""Which engine builds the images, and with what command."""

from __future__ import annotations

from pathlib import Path

import pytest

from apparate_images import engines, images


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
