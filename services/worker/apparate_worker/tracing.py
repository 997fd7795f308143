"""What a request's trace says: a span from its arrival to its answer, below it queue, pass, ramps and feedback."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from apparate.feedback import FINAL
from apparate.service.tracing import Tracing, traceparent
from apparate_worker.passes import Pass

if TYPE_CHECKING:
    from opentelemetry.trace import Span

HEADERS = (b"traceparent", b"tracestate")
SERVER_ERROR = 500
CLIENT_GONE = 499
NOTHING: Mapping[str, Any] = {}


class RequestTraces:
    """Spans of one worker's requests."""

    def __init__(self, tracing: Tracing) -> None:
        self._tracing = tracing

    def begin(self, protocol: str, model: str, headers: Iterable[tuple[bytes, bytes]]) -> Span | None:
        """The span of a request that has just come; None when it is not among those that are recorded."""
        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in HEADERS}
        attributes = {"network.protocol.name": protocol, "apparate.model": model[:253]}
        return self._tracing.begin("infer", carrier, attributes)

    @staticmethod
    def finish(span: Span, status: int, told: Mapping[str, Any]) -> None:
        """The request was answered: HTTP status, and the answer's parameters."""
        from opentelemetry.trace import StatusCode

        span.set_attribute("http.response.status_code", status)
        for name, value in told.items():
            span.set_attribute(f"apparate.{name}", value)
        if status >= SERVER_ERROR or status == CLIENT_GONE:
            span.set_status(StatusCode.ERROR, f"status {status}")
        span.end()

    def passed(self, done: Pass) -> None:
        """A pass has been reported: what became of each of its rows whose request is traced."""
        for row, item in enumerate(done.items):
            span: Span | None = item.request.trace
            if span is not None:
                self._row(done, row, span)

    def _row(self, done: Pass, row: int, span: Span) -> None:
        past = self._tracing.past
        arrived = done.items[row].request.arrived
        released = arrived + float(done.released_s[row])
        past("queue", span, arrived, done.started, {"apparate.item": done.items[row].index})
        ramp = int(done.exits[row])
        attributes: dict[str, Any] = {
            "apparate.batch_requests": len(done.items),
            "apparate.plan_revision": done.plan.revision,
            "apparate.exit_ramp": ramp,
            "apparate.guarded": done.guarded,
        }
        over = past("pass", span, done.started, released, attributes)
        thresholds = {setting.ramp: setting.threshold for setting in done.plan.ramps}
        at = done.started
        for step, seconds in done.timed or ():
            named: dict[str, Any] = {"apparate.ramp": step}
            if step in done.errors:
                named["apparate.error_score"] = float(done.errors[step][row])
                named["apparate.threshold"] = float(thresholds.get(step, 0.0))
            past("final" if step == FINAL else f"ramp {step}", over, at, at + seconds, named)
            at += seconds
        past("feedback", span, max(released, at), time.monotonic(), {"apparate.agrees": agrees(done, row)})


def text(value: str | bytes) -> bytes:
    """A value of gRPC metadata, as HTTP headers have it."""
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")


def agrees(done: Pass, row: int) -> bool:
    """Whether a row's answer is the model's own."""
    ramp = int(done.exits[row])
    return ramp == FINAL or not done.whole or bool(done.labels[ramp][row] == done.final_labels[row])


def traces_of(done: Pass) -> list[str]:
    """The id of each row's trace, empty where there is none."""
    spans = (item.request.trace for item in done.items)
    return [f"{span.get_span_context().trace_id:032x}" if span is not None else "" for span in spans]


def trace_of(done: Pass) -> str:
    """The W3C traceparent of one of a pass's requests, for its feedback; empty when none is traced."""
    return next((traceparent(item.request.trace) for item in done.items if item.request.trace is not None), "")
