"""What the checks of `apparate doctor` find."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from apparate.cli.target import Json

SKEW_S = 2.0  # clocks further apart make times of decisions and leases misleading
OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Found:
    """What one check found."""

    check: str
    verdict: str
    """ok, warn: it works, and not as it should; fail."""
    told: str
    next: str = ""
    """What to do about it."""


def runbook(alert: str) -> str:
    """Where the documentation says what to do about what an alert tells, too."""
    return f"the documentation, Runbooks, {alert} (docs/runbooks/{alert}.md)"


def of_readiness(body: Json) -> Iterator[Found]:
    """What a controller's /readyz says."""
    problems = body.get("problems") or {}
    for what, why in problems.items():
        failing = body.get("status") != "ok"
        yield Found(f"controller: {what or 'itself'}", FAIL if failing else WARN, str(why))
    if not problems:
        yield Found("controller", OK, "reads feedback and can publish plans")
