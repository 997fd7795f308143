"""The end of a process is told where Kubernetes looks for it, and nowhere else."""

import json

import pytest

from apparate.service.termination import tell_end


@pytest.mark.parametrize(
    "message", ["x" * 10_000, "ä" * 10_000, '"\n' * 10_000], ids=["plain", "long letters", "quotes"]
)
def test_the_end_is_told_in_what_kubernetes_keeps_of_it(tmp_path, message):
    log = tmp_path / "log"
    log.write_text("what was there before" * 1000)
    tell_end(log, "DeviceLost", message)
    assert log.stat().st_size < 4096
    told = json.loads(log.read_text())
    assert (told["reason"], message.startswith(told["message"]), len(told["message"]) > 500) == (
        "DeviceLost",
        True,
        True,
    )


def test_outside_of_a_pod_no_file_is_made(tmp_path):
    tell_end(tmp_path / "log", "DeviceLost", "x")
    tell_end(tmp_path / "no" / "log", "DeviceLost", "x")
    assert list(tmp_path.iterdir()) == []
