"""Settings of the operator that have a form of their own."""

from __future__ import annotations

import pytest

from apparate.service.settings import InvalidSettings
from apparate_operator.settings import OperatorSettings


def of(**given: str) -> OperatorSettings:
    """Settings from environment variables."""
    environ = {"WORKER_IMAGE": "worker:1", **given}
    return OperatorSettings.load({f"EEM_OPERATOR_{name}": value for name, value in environ.items()})


def test_labels_of_monitors_are_pairs() -> None:
    assert of(MONITOR_LABELS="release=kps,team=a=b,empty=").monitor_label_pairs == (
        ("release", "kps"),
        ("team", "a=b"),
        ("empty", ""),
    )
    assert of(MONITOR_LABELS="").monitor_label_pairs == ()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"MONITOR_LABELS": "release"}, "EEM_OPERATOR_MONITOR_LABELS.*'release' is not NAME=VALUE"),
        ({"MONITOR_LABELS": "=kps"}, "is not NAME=VALUE"),
        ({"SCRAPE_INTERVAL": "often"}, "EEM_OPERATOR_SCRAPE_INTERVAL"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidSettings, match=words):
        of(**given)
