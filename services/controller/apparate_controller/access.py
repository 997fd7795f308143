"""Whether the Kubernetes API lets the controller do its work: what is refused or not answered, for /readyz and log.

A condition cannot tell of it: it could not be written either.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from apparate.service.kube import FORBIDDEN, NOT_FOUND, UNAUTHORIZED, KubeError, Right
from apparate.service.telemetry import get_logger

PASSING_S = 30.0  # an API server that does not answer for less is being restarted
FORGOTTEN_S = 90.0  # nobody tries any more: every caller does so again within 30 s
log = get_logger(__name__)


@dataclass(frozen=True)
class Failure:
    """Calls of one kind that fail. Times are monotonic, in seconds."""

    error: KubeError
    since: float
    last: float


class Access:
    """Observes a KubeClient. Safe from any thread.

    count: told of each failed call, with its verb and HTTP status, 0 when there was no answer.
    """

    def __init__(
        self,
        count: Callable[[str, int], None] = lambda verb, status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._count, self._clock = count, clock
        self._failures: dict[Right, Failure] = {}
        self._lock = threading.Lock()

    def __call__(self, right: Right, error: KubeError | None) -> None:
        """A call that needs `right` ended."""
        if error is not None:
            self._count(right.verb, error.status)
        failed = error if error is not None and _matters(right, error) else None
        now = self._clock()
        with self._lock:
            before = self._failures.pop(right, None)
            if failed is not None:
                same = before is not None and before.error.passing == failed.passing
                self._failures[right] = Failure(failed, before.since if before is not None and same else now, now)
        was, refused = before is not None and not before.error.passing, failed is not None and not failed.passing
        if failed is not None and refused and not was:
            log.error("Kubernetes refuses", right=str(right), why=_why(failed))
        elif failed is None and was:
            log.info("Kubernetes allows it again", right=str(right))

    def problems(self) -> dict[str, str]:
        """By what is needed, why it is not had: what was refused, and what was not answered for long."""
        now = self._clock()
        with self._lock:
            self._failures = {r: one for r, one in self._failures.items() if now - one.last <= FORGOTTEN_S}
            failures = sorted(self._failures.items())
        return {
            str(right): _why(one.error)
            for right, one in failures
            if not one.error.passing or now - one.since >= PASSING_S
        }


def _matters(right: Right, error: KubeError) -> bool:
    """Whether a failure says that this kind of call cannot be made; else it is about one object, or its version."""
    missing = error.status == NOT_FOUND and right.verb in ("list", "watch")  # no such resource
    refused = error.status == UNAUTHORIZED or error.lacks_right
    return error.passing or refused or missing


def _why(error: KubeError) -> str:
    if error.status == UNAUTHORIZED:
        return f"the API server does not accept this process's token (expired, or of a deleted account): {error}"
    if error.status == FORBIDDEN:
        return f"a right is missing in the controller's Role or ClusterRole: {error}"
    return str(error)
