"""Metric objects are built from their declarations, and logs are one JSON object a line."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time

import pytest
from structlog.testing import capture_logs

from apparate.contract.metrics import CONTROLLER, WORKER, Metric
from apparate.service.telemetry import Faults, Quietly, Telemetry, get_logger

THINGS = (
    Metric("apparate_things", "counter", "Things.", ("ramp",)),
    Metric("apparate_thing_seconds", "histogram", "Time of a thing.", (), (0.1, 1)),
)


def test_a_counter_shows_with_its_labels() -> None:
    telemetry = Telemetry(THINGS)
    telemetry("apparate_things", ramp="3").inc(2)
    assert 'apparate_things_total{ramp="3"} 2.0' in telemetry.render().decode()


def test_constant_labels_are_on_everything() -> None:
    telemetry = Telemetry(THINGS, {"model": "default/m"})
    telemetry("apparate_thing_seconds").observe(0.5)
    assert 'apparate_thing_seconds_bucket{le="1.0",model="default/m"} 1.0' in telemetry.render().decode()


def test_a_metric_that_is_not_declared_is_an_error() -> None:
    with pytest.raises(KeyError):
        Telemetry(THINGS)("apparate_surprises")


@pytest.mark.parametrize("metrics", [WORKER, CONTROLLER], ids=["worker", "controller"])
def test_every_declared_metric_can_be_built(metrics: tuple[Metric, ...]) -> None:
    names = {m.name for m in metrics}
    assert len(names) == len(metrics)
    assert Telemetry(metrics).render() is not None


def test_logs_of_ours_and_of_libraries_are_json_lines_on_stderr() -> None:
    code = (
        "import logging\nfrom apparate.service.telemetry import configure_logging, get_logger\n"
        "configure_logging('INFO', 'thing')\nget_logger('a').info('plan applied', revision=3)\n"
        "logging.getLogger('library').warning('slow %s', 'disk')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours, theirs = map(json.loads, done.stderr.splitlines())
    assert (ours["event"], ours["revision"], ours["level"], ours["service"]) == ("plan applied", 3, "info", "thing")
    assert (theirs["event"], theirs["level"]) == ("slow disk", "warning")
    assert done.stdout == ""


def test_clients_cannot_fill_the_log_through_a_library() -> None:
    code = (
        "import logging\nfrom apparate.service.telemetry import configure_logging\n"
        "configure_logging('INFO', 'thing')\n"
        "for _ in range(50): logging.getLogger('grpc._cython.cygrpc').error('Unexpected [%s]', 'DecodeError')\n"
        "for _ in range(50): logging.getLogger('uvicorn.error').warning('Invalid HTTP request received.')\n"
        "for _ in range(3): logging.getLogger('kopf').warning('another object')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    said = [json.loads(line)["event"] for line in done.stderr.splitlines()]
    assert said == ["Unexpected [DecodeError]", "Invalid HTTP request received.", *["another object"] * 3]


def test_what_a_library_said_meanwhile_is_counted() -> None:
    quietly = Quietly(every_s=0.2)
    lines = [logging.LogRecord("grpc", logging.ERROR, "x.py", 7, "gone %s", ("away",), None) for _ in range(4)]
    assert [quietly.filter(line) for line in lines[:3]] == [True, False, False]
    time.sleep(0.25)
    assert quietly.filter(lines[3])
    assert lines[3].getMessage() == "gone away (2 more were held back)"


def test_what_is_gone_leaves_no_series_behind() -> None:
    telemetry = Telemetry(CONTROLLER)
    for model in ("a", "b"):
        telemetry("apparate_workers", namespace="shop", model=model).set(2)
        telemetry("apparate_decisions", namespace="shop", model=model, reason="Started").inc()
    telemetry.forget(namespace="shop", model="a")
    shown = telemetry.render().decode()
    assert 'model="a"' not in shown and 'model="b"' in shown


def fail(where: int) -> Exception:
    try:
        if where:
            raise ValueError(f"request {where}")
        raise KeyError("x")
    except (ValueError, KeyError) as error:
        return error


def test_a_fault_that_comes_with_every_request_is_one_line_with_its_traceback_and_then_a_count() -> None:
    with capture_logs() as lines:
        faults = Faults(get_logger("test"), every_s=0.05)
        for request in range(1, 500):
            faults("request failed", fail(request))
        faults("request failed", fail(0))
        time.sleep(0.06)
        faults("request failed", fail(500))
    told = [(line["error"], line["held_back"], line["exc_info"] is not None) for line in lines]
    assert told[:1] == [("ValueError: request 1", 0, True)]
    assert ("KeyError: 'x'", 0, True) in told
    assert told[-1][0] == "ValueError: request 500" and not told[-1][2]
    assert sum(line["held_back"] + 1 for line in lines) == 501 and len(lines) < 50


def test_faults_of_ever_new_kinds_take_no_memory() -> None:
    faults = Faults(get_logger("test"))
    with capture_logs():
        for number in range(1000):
            faults(f"event {number}", fail(1))
    assert len(faults._kinds) <= 64


def test_many_values_at_once_are_counted_as_one_by_one():
    values = [0.0, 0.001, 0.1, 0.1000001, 7.0, 1e9]
    metric = Metric("apparate_test_seconds", "histogram", "Test.", buckets=(0.001, 0.1, 5.0))
    together, single = Telemetry((metric,)), Telemetry((metric,))
    together("apparate_test_seconds").observe_all(values)
    for value in values:
        single("apparate_test_seconds").observe(value)
    lines = [
        [line for line in one.render().decode().splitlines() if line.startswith("apparate_test")]
        for one in (together, single)
    ]
    assert lines[0] == lines[1]
