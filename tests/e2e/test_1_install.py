"""The chart, installed with its defaults and the cluster's values."""

from __future__ import annotations

import pytest

from support.e2e import SYSTEM, Stage

pytestmark = pytest.mark.e2e


def test_operator_controller_and_redis_are_ready_where_restricted_is_enforced(installed: Stage) -> None:
    for component in ("operator", "controller", "redis"):
        installed.wait(f"{component} is ready", lambda: installed.ready(component), within=60)  # noqa: B023 - ends here


def test_the_charts_own_test_passes(installed: Stage) -> None:
    said = installed.helm("test", "apparate", "-n", SYSTEM, "--timeout", "60s")
    assert "Succeeded" in said, said
