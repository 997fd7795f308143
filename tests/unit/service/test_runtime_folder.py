"""A folder that belongs to a process is gone with it, and nobody else's is ever touched."""

import os
import subprocess
import sys

import pytest

from apparate.service.runtime_folder import LOCK, RuntimeFolder, remove_abandoned


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def abandoned(temporary, prefix="thing-"):
    code = f"from apparate.service.runtime_folder import *\nimport os\nr = RuntimeFolder({prefix!r})\n"
    code += "(r.path / 'data').write_text('x')\nos.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(temporary)}, check=False)
    return next(temporary.glob(f"{prefix}*"))


def test_a_folder_in_use_is_left_alone_also_by_its_own_process(temporary):
    used = RuntimeFolder("thing-")
    assert remove_abandoned("thing-") == [] and used.path.is_dir()
    used.cleanup()
    used.cleanup()
    assert not used.path.exists()


def test_a_folder_whose_process_was_killed_is_removed(temporary):
    left = abandoned(temporary)
    assert (left / LOCK).exists() and remove_abandoned("thing-") == [left] and not left.exists()


def test_folders_of_another_prefix_without_a_lock_and_links_are_left_alone(temporary):
    other, target = abandoned(temporary, "other-"), abandoned(temporary, "target-")
    (temporary / "thing-new").mkdir()
    (temporary / "thing-link").symlink_to(target)
    assert remove_abandoned("thing-") == []
    assert other.is_dir() and (temporary / "thing-new").is_dir() and (target / "data").exists()
