"""A receiver of traces: OTLP over HTTP, as a collector takes them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from apparate.service.tracing import Tracing, tracing


@dataclass(frozen=True)
class Span:
    """One span as it was received."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]
    attributes: dict[str, Any]
    began: int
    ended: int
    failed: bool


@dataclass
class Receiver:
    """What came so far."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list)

    def named(self, name: str) -> list[Span]:
        return [one for one in self.spans if one.name == name]

    def below(self, span: Span) -> dict[str, Span]:
        return {one.name: one for one in self.spans if one.parent == span.id}


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")


def _spans(request: Any) -> Iterator[Span]:
    for resource in request.resource_spans:
        told = {one.key: _value(one.value) for one in resource.resource.attributes}
        for scope in resource.scope_spans:
            for one in scope.spans:
                yield Span(
                    str(told.get("service.name")),
                    one.name,
                    one.trace_id.hex(),
                    one.span_id.hex(),
                    one.parent_span_id.hex(),
                    tuple(link.span_id.hex() for link in one.links),
                    {each.key: _value(each.value) for each in one.attributes},
                    one.start_time_unix_nano,
                    one.end_time_unix_nano,
                    one.status.code == 2,
                )


@contextlib.contextmanager
def a_receiver() -> Iterator[Receiver]:
    """A receiver on a port of its own; its `endpoint` is what OTEL_EXPORTER_OTLP_ENDPOINT takes."""
    found = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.spans += _spans(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(ExportTraceServiceResponse().SerializeToString())

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def a_tracing(service: str, to: Receiver) -> Iterator[Tracing]:
    """Tracing as the environment variables of a process would have it, to this receiver."""
    found = tracing(service, {"OTEL_EXPORTER_OTLP_ENDPOINT": to.endpoint})
    assert found is not None
    yield found
    found.shutdown()
