"""The protocol's extensions, the same over HTTP and gRPC, over real sockets."""

import asyncio
import contextlib
import gzip
import json
import threading
import zlib

import grpc
import numpy as np
import pytest
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from apparate.plan import Plan
from apparate_proto.inference import open_inference_pb2 as pb
from support.eventually import eventually_async
from support.infer import URL, ask, binary_body, client, json_body, message, scores, stub
from support.models import a_prepared_model, a_worker, filled, items, only

CODED = {"gzip": gzip.compress, "deflate": zlib.compress}
OPEN = Plan.of(4, [0, 1, 2], [1.0] * 3, "tiny")


@contextlib.asynccontextmanager
async def both(prepared=None, **spec):
    """(worker, HTTP client, gRPC service)."""
    async with (
        a_worker(prepared, **spec) as (worker, http, address),
        client(http) as c,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield worker, c, stub(channel)


def parameters(answer):
    return {key: getattr(one, one.WhichOneof("parameter_choice")) for key, one in answer.parameters.items()}


async def test_every_path_of_a_model_may_name_its_version():
    async with both() as (_, c, _):
        base = "/v2/models/tiny"
        assert (await c.get(base)).json()["versions"] == ["1"]
        for path in ("", "/ready", "/stats"):
            assert (await c.get(f"{base}/versions/1{path}")).json() == (await c.get(f"{base}{path}")).json()
            assert (await c.get(f"{base}/versions/2{path}")).status_code == 404
        answer = await c.post(f"{base}/versions/1/infer", json=json_body(items(1)))
        assert (answer.status_code, answer.json()["model_version"]) == (200, "1")
        assert (await c.post(f"{base}/versions/2/infer", json=json_body(items(1)))).status_code == 404


async def test_a_body_without_json_is_answered_like_one_with_it():
    x = items(1)
    async with both() as (_, c, _):
        body, headers = binary_body(x)
        wanted = await c.post(URL, content=body, headers=headers)
        length = {"inference-header-content-length": "0"}
        raw = await c.post(URL, content=x.tobytes(), headers=length)
        assert (raw.status_code, raw.content) == (200, wanted.content)
        assert (await c.post(URL, content=x.tobytes()[:-1], headers=length)).status_code == 400
        assert (await c.post("/v2/models/other/infer", content=x.tobytes(), headers=length)).status_code == 404


async def test_a_request_may_be_compressed():
    x = items(2)
    async with both() as (_, c, _):
        for body, headers in (binary_body(x), (json.dumps(json_body(x)).encode(), {})):
            plain = await c.post(URL, content=body, headers=headers)
            for coding, encode in CODED.items():
                coded = await c.post(URL, content=encode(body), headers={**headers, "content-encoding": coding})
                assert (coded.status_code, coded.content) == (200, plain.content)


WRONG = [
    (gzip.compress(bytes(10_000)), "gzip", 413),
    (zlib.compress(bytes(10_000)), "deflate", 413),
    (gzip.compress(b"{}")[:-3], "gzip", 400),
    (b"{}", "gzip", 400),
    (b"{}", "br", 400),
]


async def test_a_compressed_body_that_is_too_large_or_wrong_is_refused():
    limits = {"serving": {"protocols": {"http": {"maxBodyBytes": 4096}}}}
    async with both(**limits) as (_, c, _):
        for body, coding, status in WRONG:
            answer = await c.post(URL, content=body, headers={"content-encoding": coding})
            assert (answer.status_code, "error" in answer.json()) == (status, True)
        await ask(c, items(1))


async def test_a_large_answer_is_compressed_when_it_is_asked_for():
    async with both(a_prepared_model(classes=300)) as (_, c, _):
        for body in (json_body(items(50)), json_body(items(50), parameters={"binary_data_output": True})):
            plain = await c.post(URL, json=body, headers={"accept-encoding": "identity"})
            assert "content-encoding" not in plain.headers
            for coding in CODED:
                coded = await c.post(URL, json=body, headers={"accept-encoding": coding})
                assert coded.content == plain.content
                assert coded.headers.get("content-encoding") in (coding, None)
                if "inference-header-content-length" not in coded.headers:
                    assert int(coded.headers["content-length"]) < 0.8 * len(plain.content)
        small = await c.post(URL, json=json_body(items(1), outputs=[{"name": "label"}]))
        assert "content-encoding" not in small.headers


async def test_an_output_may_be_asked_for_as_its_best_classes():
    x = items(2)
    async with both() as (_, c, service):
        top = {"name": "logits", "parameters": {"classification": 2}}
        answer = await ask(c, x, outputs=[{"name": "label"}, top])
        wanted = scores(await ask(c, x))
        raw = await service.ModelInfer(message(x, outputs=[{"name": "logits", "parameters": whole(classification=2)}]))
        typed_request = message(x, outputs=[{"name": "logits", "parameters": whole(classification=9)}])
        typed_request.ClearField("raw_input_contents")
        typed_request.inputs[0].contents.fp32_contents.extend(x.ravel().tolist())
        typed = await service.ModelInfer(typed_request)
    output = answer["outputs"][1]
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "BYTES", [2, 2])
    order = np.argsort(-wanted, axis=1)[:, :2]
    named = [f"{wanted[row, k]:f}:{k}:class{k}" for row in (0, 1) for k in order[row]]
    assert output["data"] == named
    assert (raw.outputs[0].datatype, list(raw.outputs[0].shape)) == ("BYTES", [2, 2])
    packed = b"".join(len(one).to_bytes(4, "little") + one.encode() for one in named)
    assert raw.raw_output_contents[0] == packed
    assert list(typed.outputs[0].shape) == [2, 3]
    assert typed.outputs[0].contents.bytes_contents[0] == named[0].encode()


def whole(**parameters):
    return {name: pb.InferParameter(int64_param=value) for name, value in parameters.items()}


async def test_a_large_request_for_classes_is_answered_like_a_small_one():
    x, top = items(40), [{"name": "logits", "parameters": {"classification": 300}}]
    async with both(a_prepared_model(classes=300)) as (_, c, _):
        together = (await ask(c, x, outputs=top))["outputs"][0]
        alone = [(await ask(c, row[None], outputs=top))["outputs"][0]["data"][0] for row in x[:3]]
    assert together["shape"] == [40, 300]
    best = [one.partition(":")[2] for one in (*together["data"][:900:300], *alone)]  # last bits may differ
    assert best[:3] == best[3:]


async def test_only_class_scores_have_best_classes():
    async with both() as (_, c, service):
        for output in ("label", "exit_ramp"):
            asked = [{"name": output, "parameters": {"classification": 1}}]
            answer = await c.post(URL, json=json_body(items(1), outputs=asked))
            assert (answer.status_code, "has no classes" in answer.json()["error"]) == (400, True)
            asked = [{"name": output, "parameters": whole(classification=1)}]
            with pytest.raises(grpc.aio.AioRpcError, match="has no classes"):
                await service.ModelInfer(message(items(1), outputs=asked))


async def test_statistics_count_requests_items_and_passes_and_are_the_same_over_both_protocols():
    def raises_on_the_huge(k, value):
        if float(value.abs().max()) > 1e6:
            raise RuntimeError("too huge")

    async with both(a_prepared_model(hook=raises_on_the_huge), serving={"maxBatch": 4}) as (_, c, service):
        for count in (1, 4, 4):
            await ask(c, items(count))
        await service.ModelInfer(message(items(1)))
        assert (await c.post(URL, json=json_body(items(1) * 1e9))).status_code == 500

        async def told():
            return (await c.get("/v2/models/stats")).json()["model_stats"][0]

        await eventually_async(async_is(told, lambda one: one["inference_count"] >= 10))
        one = await told()
        assert (one["name"], one["version"]) == ("tiny", "1")
        stats = one["inference_stats"]
        assert (stats["success"]["count"], stats["fail"]["count"]) == (4, 1)
        assert all(stats[kind]["ns"] > 0 for kind in ("success", "fail", "queue", "compute_input", "compute_infer"))
        assert {b["batch_size"]: b["compute_infer"]["count"] for b in one["batch_stats"]}[4] == 2
        assert one["execution_count"] == sum(b["compute_infer"]["count"] for b in one["batch_stats"])
        same = await service.ModelStatistics(pb.ModelStatisticsRequest(name="tiny"))
        assert same.model_stats[0] == pb.ModelStatistics(**(await told()))
        with pytest.raises(grpc.aio.AioRpcError, match="not served here"):
            await service.ModelStatistics(pb.ModelStatisticsRequest(name="other"))
        assert (await c.get("/v2/models/other/stats")).status_code == 404


def async_is(get, holds):
    async def check():
        return holds(await get())

    return check


async def test_the_index_lists_every_model_with_its_state_over_both_protocols():
    async with both() as (_, c, service):
        listed = [{"name": "tiny", "version": "1", "state": "READY", "reason": ""}]
        for body in (b"", b"{}", b'{"ready": true}'):
            assert (await c.post("/v2/repository/index", content=body)).json() == listed
        same = await service.RepositoryIndex(pb.RepositoryIndexRequest())
        assert same.models == [pb.RepositoryIndexResponse.ModelIndex(**listed[0])]
        assert (await c.post("/v2/repository/index", content=b"[]")).status_code == 400


async def test_grpc_health_knows_the_server_and_each_model():
    async with a_worker() as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", "inference.GRPCInferenceService", "tiny"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


async def test_who_watches_grpc_health_hears_of_the_end_and_does_not_hold_it_up():
    heard = []
    async with a_worker() as (worker, _, address), grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        unknown = health.Watch(health_pb2.HealthCheckRequest(service="other"))
        heard.append((await watch.read()).status)
        assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        draining = asyncio.create_task(worker.drain(1.0))
        heard.append((await watch.read()).status)
        await asyncio.wait_for(draining, 10)
        assert await watch.code() is grpc.StatusCode.UNAVAILABLE
    states = health_pb2.HealthCheckResponse
    assert heard == [states.SERVING, states.NOT_SERVING]


async def test_tools_find_the_services_by_reflection():
    async with a_worker() as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        ask_for = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        answer = await ask_for(iter([request])).read()
        names = {one.name for one in answer.list_services_response.service}
        assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names
        for name in names - {"grpc.reflection.v1alpha.ServerReflection"}:
            request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=name)
            assert (await ask_for(iter([request])).read()).HasField("file_descriptor_response")


METHODS = ("inference.GRPCInferenceService/ModelInfer", "grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch")


async def test_a_message_that_cannot_be_read_is_refused_and_fills_no_log(caplog):
    async with a_worker() as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        for method in METHODS:
            kind = channel.unary_stream if method.endswith("Watch") else channel.unary_unary
            call = kind(f"/{method}", request_serializer=None, response_deserializer=None)(b"\xff\xff\xff")
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [one for one in caplog.records if one.name.startswith("grpc")] == []


async def test_http_that_cannot_be_read_is_refused_in_json():
    async with a_worker() as (_, http, _):
        host, port = http.split(":")
        for data in (b"garbage\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(data)
            head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
            writer.close()
            await writer.wait_closed()
            assert (head.split(b"\r\n")[0], json.loads(body).keys()) == (b"HTTP/1.1 400 Bad Request", {"error"})


LEAVES_AT = [
    ({}, 0),
    ({"exit.mode": "default"}, 0),
    ({"exit.mode": "off"}, -1),
    ({"exit.max_ramp": 0}, 0),
    ({"exit.min_confidence": 1.0}, -1),
    ({"exit.min_confidence": 0.0}, 0),
    ({"exit.mode": "default", "exit.deadline_ms": 20_000}, 0),
]
FIELDS = {str: "string_param", int: "int64_param", float: "double_param"}


async def test_a_request_may_ask_for_less_than_the_plan_allows_over_both_protocols():
    async with both(a_prepared_model(sharp=3.0), plan=OPEN) as (worker, c, service):
        for asked, ramp in LEAVES_AT:
            filled(worker)
            answer = await ask(c, items(1), parameters=asked)
            filled(worker)
            request = message(items(1))
            for name, value in asked.items():
                setattr(request.parameters[name], FIELDS[type(value)], value)
            same = parameters(await service.ModelInfer(request))
            assert answer["parameters"]["exit_ramp"] == same["exit_ramp"] == ramp
            assert same["error_score"] == answer["parameters"]["error_score"]


NOT_ALLOWED = [
    ({"exit.mode": "fast"}, "exit.mode is 'fast', must be one of: default, off"),
    ({"exit.max_ramp": 7}, "exit.max_ramp is 7, this model has ramps 0..2"),
    ({"exit.min_confidence": 2}, "exit.min_confidence is 2, must be a number within 0..1"),
    ({"exit.threshold": 0.5}, "exit.threshold is not known"),
]


async def test_what_a_request_may_not_ask_for_is_named():
    async with both() as (_, c, _):
        for asked, words in NOT_ALLOWED:
            answer = await c.post(URL, json=json_body(items(1), parameters=asked))
            assert (answer.status_code, words in answer.json()["error"]) == (400, True)


async def test_a_model_may_keep_its_exits_to_itself():
    async with both(serving={"clientExits": ["exit.mode"]}) as (_, c, service):
        await ask(c, items(1), parameters={"exit.mode": "off"})
        answer = await c.post(URL, json=json_body(items(1), parameters={"exit.max_ramp": 0}))
        assert (answer.status_code, "clientExits: exit.mode" in answer.json()["error"]) == (400, True)
        request = message(items(1))
        request.parameters["exit.deadline_ms"].int64_param = 5
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await service.ModelInfer(request)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_beyond_its_exit_deadline_is_told_which_one_it_was():
    go_on = threading.Event()
    go_on.set()
    async with both(a_prepared_model(hook=lambda k, value: go_on.wait(5) and None)) as (_, c, _):
        go_on.clear()
        asked = {"exit.deadline_ms": 50, "timeout": 10_000_000}
        answer = await c.post(URL, json=json_body(items(1), parameters=asked))
        go_on.set()
    assert answer.status_code == 504
    assert answer.json()["error"] == "no answer within the request's exit.deadline_ms of 50"


async def test_what_ramps_say_of_a_request_that_may_not_leave_is_reported_all_the_same():
    prepared, x = a_prepared_model(sharp=3.0), items(4)
    async with both(prepared, plan=OPEN) as (worker, c, _):
        filled(worker)
        passes = []
        only(worker)._reporter._on_passes = passes.extend
        await ask(c, x, parameters={"exit.mode": "off"})
        await eventually_async(lambda: sum(len(one.items) for one in passes) == 4)
    assert all((one.exits == -1).all() for one in passes)
    for one in passes:
        assert set(one.errors) == {0, 1, 2}
        assert all(0 < error < 1 for errors in one.errors.values() for error in errors)


async def test_the_parameters_of_a_request_of_many_items_tell_of_the_last_to_leave_and_the_least_sure():
    prepared, x = a_prepared_model(sharp=3.0), items(6)
    outputs = [{"name": name} for name in ("logits", "exit_ramp", "error_score")]
    async with both(prepared, plan=Plan.of(4, [0, 2], [0.3, 1.0], "tiny")) as (worker, c, _):
        filled(worker)
        answer = await ask(c, x, outputs=outputs)
    said, ramps, errors = (one["data"] for one in answer["outputs"])
    assert set(ramps) == {0, 2}
    wanted = 1 - torch.softmax(torch.tensor(said).reshape(6, 3), 1).max(1).values
    np.testing.assert_allclose(errors, wanted, atol=1e-6)
    found = answer["parameters"]
    assert (found["exit_ramp"], found["exit_layer"]) == (2, "ramp2")
    assert found["error_score"] == pytest.approx(max(errors), abs=1e-6)
