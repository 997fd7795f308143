"""Where Prometheus comes from, and what is said when it comes from nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from apparate_cluster import prometheus
from apparate_cluster.binaries import MissingBinary


def a_program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_one_on_the_path_goes_before_the_one_that_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = a_program(tmp_path, "promtool")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prometheus.find("promtool") == wanted


def test_debians_name_of_alertmanager_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = a_program(tmp_path, "prometheus-alertmanager")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert prometheus.find("alertmanager") == wanted


def test_what_is_missing_is_said_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "PROGRAMS", {"oracle": "oracle-of-delphi"})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingBinary, match="there is no oracle: make test-tools"):
        prometheus.find("oracle")
