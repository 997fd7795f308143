"""`make release` but for its images: what it makes of the newest commit can be installed, rendered and verified."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from apparate_cluster import binaries
from support.helm import Helm

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(".cache/cluster/bin")
IN_REPOSITORY = ("services/shared", "services/worker", "services/controller", "operator", "proto", "tools/demo")
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]  # helm is a tool of that tier


def git(folder: Path, *arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean checkout of the newest commit, with the environment and the tools of this one."""
    folder = tmp_path_factory.mktemp("release") / "checkout"
    git(ROOT, "clone", "--quiet", str(ROOT), str(folder))
    (folder / ".git" / "info" / "exclude").write_text(".venv\n.cache\n")
    (folder / ".venv").symlink_to(ROOT / ".venv")
    binaries.link_into(folder / TOOLS)
    return folder


def release(clone: Path) -> subprocess.CompletedProcess[str]:
    """The script that `make release` is, without images."""
    environ = {**os.environ, "WITHOUT_IMAGES": "1"}
    script = [str(clone / "tools" / "dev" / "release.sh")]
    return subprocess.run(script, env=environ, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def made(clone: Path) -> Path:
    """The folder of a release."""
    done = release(clone)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (clone / "out" / "release").iterdir()
    return folder


def test_it_is_a_wheel_a_chart_a_bill_of_materials_and_their_checksums(made: Path) -> None:
    version = made.name
    listed = dict(reversed(line.split("  ./")) for line in (made / "SHA256SUMS").read_text().splitlines())
    wanted = {f"apparate-{version}-py3-none-any.whl", f"apparate-{version}.tgz", f"apparate-{version}.cdx.json"}
    assert set(listed) == wanted == {path.name for path in made.iterdir()} - {"SHA256SUMS"}
    assert {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in listed} == listed
    assert json.loads((made / f"apparate-{version}.cdx.json").read_text())["bomFormat"] == "CycloneDX"


def test_the_wheel_has_every_file_of_its_packages_and_runs(made: Path, clone: Path, tmp_path: Path) -> None:
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    for folder in IN_REPOSITORY:
        files = [one.removeprefix(f"{folder}/") for one in git(clone, "ls-files", f"{folder}/apparate*").splitlines()]
        assert files, folder
        needed = [one for one in files if not one.endswith(".proto")]  # what is made of them is there
        assert [one for one in needed if not (tmp_path / one).exists()] == []
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom apparate.cli import main\n"
    code += "print(main.__file__); main.run(['version'])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert str(tmp_path) in told and made.name in told


def test_the_chart_is_rendered_with_images_of_its_version(made: Path, clone: Path) -> None:
    objects = Helm(clone / TOOLS / "helm").template(chart=made / f"apparate-{made.name}.tgz")
    assert {"Deployment", "CustomResourceDefinition"} <= {one["kind"] for one in objects}
    assert f":{made.name}" in yaml.safe_dump([one for one in objects if one["kind"] == "Deployment"])


def test_a_checkout_with_changes_is_not_released(clone: Path, made: Path) -> None:
    (clone / "new.py").touch()
    done = release(clone)
    (clone / "new.py").unlink()
    assert done.returncode == 2 and "not committed" in done.stderr
    assert (made / "SHA256SUMS").exists(), "what was made before is still there"
