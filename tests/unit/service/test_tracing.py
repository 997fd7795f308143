"""Traces: off without a variable, on by the standard ones, and never a reason to stop."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from apparate.service.tracing import on_the_wall, tracing


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_SDK_DISABLED": "TRUE", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
        {"OTEL_TRACES_EXPORTER": "zipkin"},
    ],
)
def test_no_traces_are_made_unless_they_are_asked_for(environ: dict[str, str]) -> None:
    assert tracing("x", environ) is None


@pytest.mark.parametrize("module", ["apparate.service.tracing", "apparate_operator.__main__"])
def test_off_nothing_of_it_is_imported(module: str) -> None:
    code = (
        f"import sys, {module}; from apparate.service.tracing import tracing; tracing('x', {{}});"
        "sys.exit('opentelemetry' in ' '.join(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("more", [{}, {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {"OTEL_TRACES_EXPORTER": "otlp"}])
def test_an_endpoint_is_enough(more: dict[str, str]) -> None:
    found = tracing("x", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1/v1/traces", **more})
    assert found is not None
    found.shutdown()


def test_a_moment_on_one_clock_is_the_same_on_the_other() -> None:
    assert on_the_wall(time.monotonic()) == pytest.approx(time.time_ns(), abs=10**9)
    assert on_the_wall(time.monotonic() - 100) == pytest.approx(time.time_ns() - 100 * 10**9, abs=10**9)
