"""Spans of reconciling, when OpenTelemetry's variables ask for traces; of a look that changed nothing there is none."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from contextvars import ContextVar

from pydantic import ValidationError

from apparate.contract.resource import Spec
from apparate.contract.revision import revision
from apparate.service.tracing import Tracing, Value
from apparate_operator.kinds import Json
from apparate_operator.store import Key

DONE = "done"
_written: ContextVar[list[str]] = ContextVar("written")
"""What the look at a model that this task is at has written; several tasks work at a time."""


class ReconcileTraces:
    """Event loop only. `tracing`: None when nobody asks for traces; then nothing is kept or computed."""

    def __init__(self, tracing: Tracing | None) -> None:
        self._tracing = tracing

    def begin(self) -> None:
        """This task begins to look at a model."""
        if self._tracing is not None:
            _written.set([])

    def wrote(self, kind: str, verb: str) -> None:
        """Something is written."""
        written = _written.get(None)
        if written is not None:
            written.append(f"{verb} {kind}")

    def end(self, key: Key, body: Json | None, began: float, outcome: str = DONE, error: str = "") -> None:
        """The look is over; `body`: the model as it is now, `began`: on the clock of time.monotonic."""
        if self._tracing is None:
            return
        written = _written.get([])
        if not written and outcome == DONE:
            return
        told: dict[str, Value] = {
            "apparate.namespace": key[0],
            "apparate.model": key[1],
            "apparate.outcome": outcome,
            "apparate.writes": len(written),
            "apparate.written": ", ".join(written),
        }
        now = time.monotonic()
        self._tracing.linked("reconcile", (), began, now, {**told, **_of(body or {})}, error=error)


def _of(body: Json) -> Mapping[str, Value]:
    """What a span says of a model: generation, the revision that its spec asks for, the plan in force, readiness."""
    status = body.get("status") or {}
    told: dict[str, Value] = {"apparate.generation": body.get("metadata", {}).get("generation", 0)}
    with contextlib.suppress(ValidationError):  # a spec that cannot be read has none
        told["apparate.revision"] = revision(Spec.model_validate(body.get("spec")))
    if (plan := status.get("plan")) is not None:
        told["apparate.plan_revision"] = plan.get("revision", 0)
    ready = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), None)
    if ready is not None:
        told["apparate.ready"] = str(ready.get("reason"))
    return told
