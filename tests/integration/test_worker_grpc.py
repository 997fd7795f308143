"""The gRPC face of a worker, over real sockets."""

import grpc
import numpy as np
import pytest
import torch

from apparate.plan import Plan
from apparate_proto.inference import open_inference_pb2 as pb
from support.eventually import eventually_async
from support.infer import message, stub
from support.models import a_prepared_model, a_worker, filled, items


async def test_without_a_plan_answers_are_the_plain_models_bit_for_bit():
    prepared, x = a_prepared_model(), items(6)
    async with a_worker(prepared) as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        for row in x:
            answer = await stub(channel).ModelInfer(message(row[None], id="7"))
            wanted = prepared.model({"x": torch.from_numpy(row[None])}).numpy()
            assert answer.raw_output_contents[0] == wanted.tobytes()
            assert (answer.id, answer.parameters["exit_ramp"].int64_param) == ("7", -1)


async def test_typed_contents_are_answered_with_typed_contents():
    x = items(2)
    request = pb.ModelInferRequest(model_name="tiny")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    tensor.contents.fp32_contents.extend(x.ravel().tolist())
    async with a_worker() as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        answer = await stub(channel).ModelInfer(request)
    assert len(answer.outputs[0].contents.fp32_contents) == 6
    assert len(answer.outputs[1].contents.int64_contents) == 2


async def test_an_early_answer_names_its_ramp_and_plan():
    plan = Plan.of(4, [1], [1.0], "tiny")
    async with a_worker(plan=plan) as (worker, _, address), grpc.aio.insecure_channel(address) as channel:
        filled(worker)
        answer = await stub(channel).ModelInfer(message(items(1)))
    found = {key: getattr(one, one.WhichOneof("parameter_choice")) for key, one in answer.parameters.items()}
    assert 0 < found.pop("error_score") < 1
    assert found == {"exit_ramp": 1, "exit_layer": "ramp1", "plan_revision": 4}


async def test_a_channel_is_told_after_a_few_seconds_to_connect_anew_and_its_calls_go_on():
    async with a_worker() as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        await channel.channel_ready()
        left = lambda: channel.get_state() is not grpc.ChannelConnectivity.READY  # noqa: E731
        await eventually_async(left, within=10)
        assert (await stub(channel).ServerLive(pb.ServerLiveRequest())).live


async def test_health_and_metadata_say_what_is_served():
    async with a_worker() as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        service = stub(channel)
        assert (await service.ServerLive(pb.ServerLiveRequest())).live
        assert (await service.ServerReady(pb.ServerReadyRequest())).ready
        assert (await service.ModelReady(pb.ModelReadyRequest(name="tiny"))).ready
        assert (await service.ServerMetadata(pb.ServerMetadataRequest())).name == "apparate"
        model = await service.ModelMetadata(pb.ModelMetadataRequest(name="tiny", version="1"))
        assert (model.inputs[0].name, list(model.inputs[0].shape)) == ("x", [-1, 16])
        assert [one.name for one in model.outputs] == ["logits", "label", "exit_ramp", "error_score"]


def changed(**values):
    request = message(items(1))
    for name, value in values.items():
        setattr(request, name, value)
    return request


def with_tensor(**values):
    request = message(items(1))
    for name, value in values.items():
        setattr(request.inputs[0], name, value)
    return request


def with_shape(*shape):
    request = message(items(1))
    request.inputs[0].shape[:] = shape
    return request


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (changed(model_name="other"), "NOT_FOUND", "'other' is not served here"),
        (changed(model_version="7"), "NOT_FOUND", "no version '7'"),
        (with_tensor(datatype="FP64"), "INVALID_ARGUMENT", "takes 128"),
        (with_tensor(datatype="INT32"), "INVALID_ARGUMENT", "is INT32, the model takes FP32"),
        (with_tensor(datatype="?"), "INVALID_ARGUMENT", "not known"),
        (with_tensor(name="y"), "INVALID_ARGUMENT", "'x' is missing"),
        (with_shape(-1, 16), "INVALID_ARGUMENT", "-1"),
        (with_shape(2**62, 2**62), "INVALID_ARGUMENT", "is larger than any tensor"),
        (with_shape(16), "INVALID_ARGUMENT", "batch first"),
        (pb.ModelInferRequest(model_name="tiny"), "INVALID_ARGUMENT", "'x' is missing"),
        (message(items(1), outputs=[{"name": "z"}]), "INVALID_ARGUMENT", "output 'z' is not known"),
    ],
)
async def test_a_wrong_request_is_refused_by_name(request_, code, words):
    async with a_worker() as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub(channel).ModelInfer(request_)
        assert refused.value.code() is grpc.StatusCode[code]
        assert words in refused.value.details()
        assert (await stub(channel).ServerLive(pb.ServerLiveRequest())).live


async def test_a_message_above_the_limit_is_refused_with_both_sizes():
    limits = {"serving": {"protocols": {"grpc": {"maxMessageBytes": 4096}}}}
    async with a_worker(**limits) as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub(channel).ModelInfer(message(items(100)))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "4096" in refused.value.details()
        await stub(channel).ModelInfer(message(items(1)))


async def test_messages_above_grpcs_own_4_mib_are_taken():
    x = np.zeros((70_000, 16), np.float32)
    limits = {"maxQueue": 100_000, "maxBatch": 64}
    async with a_worker(serving=limits) as (_, _, address), grpc.aio.insecure_channel(address) as channel:
        answer = await stub(channel).ModelInfer(message(x, outputs=[{"name": "label"}]))
    assert list(answer.outputs[0].shape) == [70_000]
