"""What decides that an image is made anew, and what a build may see of the machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from apparate_images import images, secrets

NAMES = [image.name for image in images.ALL]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of everything that images are made from, which a test may change."""
    for image in images.ALL:
        for path in [images.ROOT / image.dockerfile, images.ROOT / "pyproject.toml", *image.files()]:
            target = tmp_path / path.relative_to(images.ROOT)
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    monkeypatch.setattr(images, "ROOT", tmp_path)
    return tmp_path


def keys() -> dict[str, str]:
    return {image.name: images.key(image, "base") for image in images.ALL}


@pytest.mark.parametrize(
    ("changed", "made_anew"),
    [
        ("operator/apparate_operator/queue.py", {"apparate-operator"}),
        ("services/controller/apparate_controller/loop.py", {"apparate-controller"}),
        ("services/worker/apparate_worker/engine.py", {"apparate-worker", "apparate-demo"}),
        ("services/shared/apparate/plan.py", set(NAMES) - {"apparate-redis"}),
        ("tools/demo/apparate_demo/load.py", {"apparate-demo"}),
        ("requirements/worker.txt", {"apparate-worker", "apparate-demo"}),
        ("services/worker/Dockerfile", {"apparate-worker", "apparate-demo"}),
        ("requirements/redis.txt", {"apparate-redis"}),
    ],
)
def test_a_changed_file_makes_those_images_anew_that_have_it(checkout: Path, changed: str, made_anew: set[str]) -> None:
    before = keys()
    with (checkout / changed).open("a") as file:
        file.write("\n# changed\n")
    assert {name for name, key in keys().items() if key != before[name]} == made_anew


def test_what_python_leaves_behind_makes_no_image_anew(checkout: Path) -> None:
    before = keys()
    left = checkout / "services/shared/apparate/__pycache__/plan.cpython-311.pyc"
    left.parent.mkdir()
    left.write_bytes(b"bytecode")
    assert keys() == before


def test_an_image_for_another_accelerator_is_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys()
    monkeypatch.setenv("IMAGE_ACCELERATOR", "cpu")
    assert {name for name, key in keys().items() if key != before[name]} == {"apparate-worker", "apparate-demo"}


def test_another_base_makes_every_image_anew() -> None:
    assert all(images.key(one, "base") != images.key(one, "another") for one in images.ALL)


def test_a_new_file_and_a_renamed_one_count(checkout: Path) -> None:
    before = keys()["apparate-operator"]
    folder = checkout / "operator/apparate_operator"
    (folder / "fresh.py").write_text("")
    with_it = keys()["apparate-operator"]
    (folder / "fresh.py").rename(folder / "renamed.py")
    assert len({before, with_it, keys()["apparate-operator"]}) == 3


def test_a_build_looks_where_pip_and_uv_look_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://mirror.example/simple")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://mirror.example/simple")
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    found = secrets.settings()
    assert found["PIP_INDEX_URL"] == found["UV_DEFAULT_INDEX"] == "http://mirror.example/simple"
    assert found["https_proxy"] == "http://proxy.example:3128"


def test_folders_of_this_machine_do_not_reach_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "/opt/wheels http://mirror.example/wheels")
    monkeypatch.setenv("UV_CACHE_DIR", "/somewhere")
    found = secrets.settings()
    assert found["PIP_FIND_LINKS"] == "http://mirror.example/wheels"
    assert "UV_CACHE_DIR" not in found


def test_secrets_are_files_that_only_their_owner_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:it's secret@mirror.example/simple")
    arguments = secrets.arguments(tmp_path)
    assert f"--secret=id=installer,src={tmp_path / 'installer'}" in arguments
    assert not any("mirror.example" in one for one in arguments)
    assert (tmp_path / "installer").stat().st_mode & 0o077 == 0
