"""Traces by OpenTelemetry, through its standard environment variables. Off, nothing of it is even imported."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from apparate import __version__
from apparate.service.telemetry import get_logger

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

DISABLED = "OTEL_SDK_DISABLED"
EXPORTER = "OTEL_TRACES_EXPORTER"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
SAMPLER = "OTEL_TRACES_SAMPLER"
OURS = "http/protobuf"
DEFAULT_SHARE = 0.01  # of requests that come without a decision of their caller, unless OTEL_TRACES_SAMPLER says more
FLUSH_S = 2.0
Value = str | bool | int | float
log = get_logger(__name__)


def tracing(service: str, environ: Mapping[str, str]) -> Tracing | None:
    """What makes spans in this process; None when no variable asks for traces. A wrong one is told, and no reason to
    stop."""
    exporter = environ.get(EXPORTER, "").strip().lower()
    asked = any(environ.get(name) for name in ENDPOINTS) or exporter not in ("", "none")
    if not asked or exporter == "none" or environ.get(DISABLED, "").strip().lower() == "true":
        return None
    if exporter not in ("", "otlp"):
        log.warning("no traces: this exporter is not built in", variable=EXPORTER, value=exporter, allowed="otlp, none")
        return None
    protocol = next((found for name in PROTOCOLS if (found := environ.get(name))), OURS)
    if protocol != OURS:
        log.warning("traces go by another protocol than asked", value=protocol, used=OURS)
    try:
        return Tracing(service, sampled=bool(environ.get(SAMPLER)))
    except Exception as error:  # noqa: BLE001 - a library's refusal of a setting must not keep models from being served
        log.warning("no traces: OpenTelemetry refuses its settings", error=f"{type(error).__name__}: {error}")
        return None


class Tracing:
    """Makes and sends spans. `sampled`: the environment says which; else a hundredth of those nobody decided on."""

    def __init__(self, service: str, *, sampled: bool) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create({"service.name": service, "service.version": __version__})
        # Spans without one above are decisions and reconciles, which are few, and requests, for which `begin` draws.
        sampler = None if sampled else ParentBased(ALWAYS_ON)
        self._share = 1.0 if sampled else DEFAULT_SHARE
        self._provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("apparate", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, name: str, carrier: Mapping[str, str], attributes: Mapping[str, Value]) -> Span | None:
        """The span of a request that has come, below the one that the W3C headers of `carrier` name.

        None when it is not recorded: its caller decided so, or nobody did and it was not drawn.
        """
        from opentelemetry.trace import SpanKind, get_current_span

        above = self._propagator.extract(carrier) if "traceparent" in carrier else _root()
        decided = get_current_span(above).get_span_context().is_valid
        if not decided and self._share < 1.0 and random.random() >= self._share:
            return None
        span = self._tracer.start_span(name, above, SpanKind.SERVER, attributes)
        return span if span.is_recording() else None

    def past(
        self, name: str, above: Span, began: float, ended: float, attributes: Mapping[str, Value] | None = None
    ) -> Span:
        """A span that is over, below another; times on the clock of time.monotonic, in seconds."""
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            name, set_span_in_context(above), attributes=attributes, start_time=on_the_wall(began)
        )
        span.end(on_the_wall(ended))
        return span

    def linked(
        self,
        name: str,
        of: Iterable[str],
        began: float,
        ended: float,
        attributes: Mapping[str, Value],
        *,
        error: str = "",
    ) -> None:
        """A span of its own that is over, with links to those that `of` names as W3C traceparents; `error`: why it
        failed, if it did."""
        from opentelemetry.trace import Link, StatusCode, get_current_span

        contexts = (get_current_span(self._propagator.extract({"traceparent": one})).get_span_context() for one in of)
        links: Sequence[Link] = [Link(one) for one in contexts if one.is_valid]
        span = self._tracer.start_span(
            name, context=_root(), links=links, attributes=attributes, start_time=on_the_wall(began)
        )
        if error:
            span.set_status(StatusCode.ERROR, error)
        span.end(on_the_wall(ended))

    def shutdown(self) -> None:
        """Send what waits, within two seconds. Whoever receives traces may be gone: so be it."""
        ending = threading.Thread(target=self._end, name="last traces", daemon=True)  # the exporter tries for 10 s
        ending.start()
        ending.join(FLUSH_S)

    def _end(self) -> None:
        with suppress(Exception):
            self._provider.force_flush(int(FLUSH_S * 1e3))
            self._provider.shutdown()


def traceparent(span: Span) -> str:
    """The W3C header that names a span."""
    at = span.get_span_context()
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{int(at.trace_flags):02x}"


def on_the_wall(monotonic_s: float) -> int:
    """A moment on the clock of time.monotonic as nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - monotonic_s) * 1e9)


def _root() -> Context:
    from opentelemetry.context import Context

    return Context()
