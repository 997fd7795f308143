"""What a trace says of a look at a model: at a real receiver."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from apparate.contract.resource import Spec
from apparate.contract.revision import revision
from apparate.service.tracing import Tracing
from apparate_operator.traces import ReconcileTraces
from support.eventually import eventually
from support.models_on_kubernetes import a_body
from support.otlp import Receiver, Span, a_receiver, a_tracing

KEY = ("shop", "resnet")


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with a_receiver() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        yield found


@pytest.fixture
def traced(collector: Receiver) -> Iterator[Tracing]:
    with a_tracing("apparate-operator", collector) as found:
        yield found


def came(collector: Receiver, traced: Tracing, count: int) -> list[Span]:
    traced.shutdown()  # sends what waits
    return eventually(lambda: found if len(found := collector.named("reconcile")) >= count else None)


def a_model(**status: Any) -> dict[str, Any]:
    body = a_body()
    body["metadata"]["generation"] = 3
    return {**body, "status": status}


def test_a_look_that_wrote_says_what_of_which_generation_and_revision(collector: Receiver, traced: Tracing) -> None:
    traces, began = ReconcileTraces(traced), time.monotonic() - 0.25
    body = a_model(plan={"revision": 7}, conditions=[{"type": "Ready", "status": "False", "reason": "Preparing"}])
    traces.begin()
    traces.wrote("Deployment", "apply")
    traces.wrote("EarlyExitModel", "status")
    traces.end(KEY, body, began)
    (span,) = came(collector, traced, 1)
    assert span.attributes == {
        "apparate.namespace": "shop",
        "apparate.model": "resnet",
        "apparate.outcome": "done",
        "apparate.writes": 2,
        "apparate.written": "apply Deployment, status EarlyExitModel",
        "apparate.generation": 3,
        "apparate.revision": revision(Spec.model_validate(body["spec"])),
        "apparate.plan_revision": 7,
        "apparate.ready": "Preparing",
    }
    assert (span.service, span.failed) == ("apparate-operator", False)
    assert span.ended - span.began >= 200_000_000


def test_a_look_that_failed_is_told_though_it_wrote_nothing_and_one_that_changed_nothing_is_not(
    collector: Receiver, traced: Tracing
) -> None:
    traces, began = ReconcileTraces(traced), time.monotonic()
    traces.begin()
    traces.end(KEY, a_model(), began)
    traces.begin()
    traces.end(KEY, None, began, "api", "PATCH /apis: 500")
    (span,) = came(collector, traced, 1)
    assert (span.failed, span.attributes["apparate.outcome"], span.attributes["apparate.writes"]) == (True, "api", 0)


def test_a_spec_that_cannot_be_read_has_no_revision(collector: Receiver, traced: Tracing) -> None:
    traces = ReconcileTraces(traced)
    traces.begin()
    traces.wrote("EarlyExitModel", "status")
    traces.end(KEY, {"metadata": {"generation": 1}, "spec": {"model": 1}}, time.monotonic())
    (span,) = came(collector, traced, 1)
    assert "apparate.revision" not in span.attributes and span.attributes["apparate.generation"] == 1


async def test_two_looks_at_a_time_do_not_count_each_others_writes(collector: Receiver, traced: Tracing) -> None:
    traces, turn = ReconcileTraces(traced), asyncio.Barrier(2)

    async def look(name: str, writes: int) -> None:
        traces.begin()
        await turn.wait()
        for _ in range(writes):
            traces.wrote("Job", "apply")
            await asyncio.sleep(0)
        await turn.wait()
        traces.end(("shop", name), a_model(), time.monotonic())

    await asyncio.gather(look("a", 1), look("b", 3))
    spans = await asyncio.to_thread(came, collector, traced, 2)
    assert {one.attributes["apparate.model"]: one.attributes["apparate.writes"] for one in spans} == {"a": 1, "b": 3}


def test_without_traces_nothing_is_kept() -> None:
    traces = ReconcileTraces(None)
    traces.begin()
    traces.wrote("Job", "apply")
    traces.end(KEY, a_model(), time.monotonic())
