"""Traces of requests and decisions, as a collector receives them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import grpc
import numpy as np
import pytest

from apparate.contract.stream import FIELD, feedback_key
from apparate.contract.wire import decode_feedback, encode_feedback
from apparate.plan import Plan
from apparate.service.redis_client import connect
from apparate.service.tracing import Tracing, tracing
from apparate_proto.inference import open_inference_pb2 as pb
from support.control import MODEL, a_batch
from support.controller_api import Api, an_api
from support.eventually import eventually_async
from support.infer import URL, client, json_body
from support.models import a_prepared_model, a_worker, filled, items
from support.otlp import Receiver, Span, a_receiver, a_tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-00"}
PLAN = Plan.of(5, [0, 2], [1.0, 0.5], "tiny")
NONE = {"adaptation": {"shadowShare": 0.0}}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with a_receiver() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield found


@pytest.fixture
def traced(collector: Receiver) -> Iterator[Tracing]:
    with a_tracing("test", collector) as found:
        yield found


async def one_request(collector: Receiver) -> Span:
    """The span of the one request that was sent, once everything below it has come."""
    below = {"queue", "pass", "feedback"}
    await eventually_async(lambda: below <= {one.name for one in collector.spans} and collector.named("infer"))
    (found,) = collector.named("infer")
    return found


@pytest.mark.parametrize(("threshold", "steps"), [(1.0, {"ramp 0"}), (0.0, {"ramp 0", "ramp 2", "final"})])
async def test_a_request_has_spans_of_queue_pass_ramps_and_feedback_below_its_callers(
    collector: Receiver, traced: Tracing, threshold: float, steps: set[str]
) -> None:
    plan = Plan.of(5, [0, 2], [threshold, 0.0], "tiny")
    async with a_worker(a_prepared_model(sharp=3.0), tracing=traced, plan=plan, **NONE) as (worker, http, _):
        filled(worker)
        async with client(http) as c:
            answer = await c.post(URL, json=json_body(items(1)), headers=CALLER)
        request = await one_request(collector)
    assert (request.trace, request.parent) == (TRACE, "b7ad6b7169203331")
    told = request.attributes
    assert (told["apparate.model"], told["http.response.status_code"]) == ("tiny", 200)
    assert told["apparate.plan_revision"] == answer.json()["parameters"]["plan_revision"] == 5
    below = collector.below(request)
    assert set(below) == {"queue", "pass", "feedback"}
    assert below["pass"].attributes["apparate.exit_ramp"] == answer.json()["parameters"]["exit_ramp"]
    found = collector.below(below["pass"])
    assert set(found) == steps  # until its answer leaves
    assert found["ramp 0"].attributes["apparate.threshold"] == threshold
    assert 0 <= found["ramp 0"].attributes["apparate.error_score"] <= 1
    assert request.began <= below["queue"].began <= below["pass"].began <= below["pass"].ended


async def test_grpc_calls_are_traced_too(collector: Receiver, traced: Tracing) -> None:
    async with a_worker(tracing=traced, **NONE) as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        message = pb.ModelInferRequest(model_name="tiny")
        values = items(1)
        message.inputs.add(name="x", datatype="FP32", shape=values.shape)
        message.raw_input_contents.append(values.tobytes())
        await infer(message.SerializeToString(), metadata=tuple(CALLER.items()))
        request = await one_request(collector)
    assert (request.trace, request.attributes["network.protocol.name"]) == (TRACE, "grpc")


async def test_a_refused_request_says_why_and_a_bad_header_is_no_reason_to_refuse(
    collector: Receiver, traced: Tracing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_on")
    sampled = tracing("test", {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_TRACES_SAMPLER": "always_on"})
    async with a_worker(tracing=sampled, **NONE) as (_, http, _), client(http) as c:
        assert (await c.post(URL, json=json_body(items(1)), headers={"traceparent": "nonsense"})).status_code == 200
        await one_request(collector)
        wrong = json_body(items(1)) | {"outputs": [{"name": "nothing"}]}
        assert (await c.post(URL, json=wrong, headers=CALLER)).status_code == 400
        await eventually_async(lambda: len(collector.named("infer")) == 2)
    assert {one.attributes["http.response.status_code"] for one in collector.named("infer")} == {200, 400}
    assert sampled is not None
    sampled.shutdown()


async def test_what_the_caller_does_not_sample_is_not_sent(collector: Receiver, traced: Tracing) -> None:
    async with a_worker(tracing=traced, **NONE) as (_, http, _), client(http) as c:
        await c.post(URL, json=json_body(items(1)), headers=UNSAMPLED)
        await c.post(URL, json=json_body(items(1)), headers=CALLER)
        await one_request(collector)
    assert len(collector.named("infer")) == 1


@pytest.mark.redis
async def test_feedback_names_a_traced_request(collector: Receiver, traced: Tracing, redis_server: str) -> None:
    async with a_worker(redis_url=redis_server, tracing=traced, plan=PLAN, **NONE) as (_, http, _), client(http) as c:
        await c.post(URL, json=json_body(items(1)), headers=CALLER)
        request = await one_request(collector)
        async with connect(redis_server) as redis:

            async def named() -> list[str]:
                return [decode_feedback(entry[FIELD]).trace for _, entry in await redis.xrange(KEY)]

            found = await eventually_async(named)
    assert found == [f"00-{TRACE}-{request.id}-01"]


KEY = feedback_key("default/tiny/local")


@pytest.fixture
async def api(redis_server: str, tmp_path, traced: Tracing) -> AsyncIterator[Api]:
    async with an_api(redis_server, tmp_path, traced) as found:
        yield found


@pytest.mark.redis
async def test_a_decision_is_linked_to_requests_it_was_taken_on(collector: Receiver, api: Api) -> None:
    loop = api.models.find("default", "m").loop
    draw = np.random.default_rng(0)
    async with connect(api.url) as redis:
        for seq in range(80):
            batch = replace(
                a_batch(seq, n=8, revision=loop.plan.revision),
                errors=draw.random((8, 3), np.float32) / 100,
                labels=np.zeros((8, 3), np.int32),
                final_labels=np.zeros(8, np.int32),
                trace=CALLER["traceparent"],
            )
            await redis.xadd(feedback_key(MODEL), {FIELD: encode_feedback(batch)})
        await eventually_async(lambda: [one for one in collector.named("decision") if one.links])
    decision = next(one for one in collector.named("decision") if one.links)
    assert decision.links[0] == "b7ad6b7169203331"
    assert decision.attributes["apparate.model"] == "m"
    assert decision.attributes["apparate.reason"] and decision.attributes["apparate.message"]


async def test_a_collector_that_is_gone_costs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    gone = tracing("test", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})
    async with a_worker(tracing=gone, **NONE) as (_, http, _), client(http) as c:
        for _ in range(5):
            assert (await c.post(URL, json=json_body(items(1)), headers=CALLER)).status_code == 200
            await asyncio.sleep(0.05)
    assert gone is not None
    began = time.monotonic()
    await asyncio.to_thread(gone.shutdown)
    assert time.monotonic() - began < 6  # the exporter itself would try for longer


async def test_a_traced_answer_is_an_example_in_the_latency_that_openmetrics_shows(
    collector: Receiver, traced: Tracing
) -> None:
    async with a_worker(tracing=traced, **NONE) as (_, http, _), client(http) as c:
        await c.post(URL, json=json_body(items(1)), headers=CALLER)
        await one_request(collector)
        wanted = await c.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"})
        plain = await c.get("/metrics")
    assert wanted.headers["content-type"].startswith("application/openmetrics-text")
    shown = [line for line in wanted.text.splitlines() if f'# {{trace_id="{TRACE}"}}' in line]
    assert len(shown) == 1 and shown[0].startswith("apparate_release_seconds_bucket{")
    assert TRACE not in plain.text and plain.headers["content-type"].startswith("text/plain")
