"""Tests of real processes have a second try, and whoever needed it is told by name at the end, with its first failure.

Such a test shares the machine with everybody else on it, and may fail because of them. That is a net, not a cure: more
than MOST tests of one run get none, so that many failures are one. Tests that need nothing but themselves get none.
"""

from __future__ import annotations

from typing import Any

import pytest

TIERS = ("integration", "cluster", "e2e", "conformance")
MOST = 3
LIMIT = pytest.StashKey[Any]()


def pytest_configure(config: pytest.Config) -> None:
    if config.option.max_suite_reruns is None:
        config.option.max_suite_reruns = MOST


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.usepdb:
        return
    for item in items:
        if item.path.relative_to(config.rootpath).parts[:2] in {("tests", tier) for tier in TIERS}:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[LIMIT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The second try has the whole time again: pytest-timeout sees one test, and its alarm may have rung already."""
    if getattr(item, "execution_count", 1) > 1 and LIMIT in item.stash:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[LIMIT])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    stats = terminalreporter.stats
    failed = {report.nodeid for kind in ("failed", "error") for report in stats.get(kind, [])}
    firsts = {report.nodeid: report for report in reversed(stats.get("rerun", []))}
    for name, first in reversed(firsts.items()):
        end = "failed at both tries" if name in failed else "passed at the second try"
        terminalreporter.section(f"{end}: {name}", yellow=True)
        terminalreporter.write_line(first.longreprtext)
