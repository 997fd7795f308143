"""The gRPC face."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn

import grpc

from apparate.service.telemetry import Faults, get_logger
from apparate_proto.inference import open_inference_pb2 as pb
from apparate_proto.inference import open_inference_pb2_grpc as pb_grpc
from apparate_worker.errors import InvalidRequest, WorkerError
from apparate_worker.protocol.dataplane import InferRequest, InferResponse, TensorMetadata
from apparate_worker.protocol.models import Models
from apparate_worker.protocol.tensors import Array, from_raw, from_values

log = get_logger(__name__)
Context = grpc.aio.ServicerContext

CONNECTION_AGE_MS = 3000
"""After this clients are told, before any call fails, to connect anew. A Service chooses a worker for each connection,
so a new worker gets its share; and a worker that stops, which new connections no longer reach, has lost its clients
within the 5 s that its pod waits before it is told to stop. Calls under way are not touched."""
CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


class GrpcFace(pb_grpc.GRPCInferenceServiceServicer):
    """inference.GRPCInferenceService over the registry of models."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._faults = Faults(log)

    async def ServerLive(self, request: Any, context: Context[Any, Any]) -> Any:
        """Whether the device thread turns."""
        return pb.ServerLiveResponse(live=self._models.live())

    async def ServerReady(self, request: Any, context: Context[Any, Any]) -> Any:
        """Whether requests should be sent here."""
        return pb.ServerReadyResponse(ready=self._models.ready())

    async def ModelReady(self, request: Any, context: Context[Any, Any]) -> Any:
        """The same, for a model that is served here."""
        try:
            return pb.ModelReadyResponse(ready=self._models.model_ready(request.name, request.version))
        except WorkerError as error:
            await _refuse(context, error)

    async def ServerMetadata(self, request: Any, context: Context[Any, Any]) -> Any:
        """Name, version, extensions."""
        return pb.ServerMetadataResponse(**self._models.server_metadata())

    async def ModelMetadata(self, request: Any, context: Context[Any, Any]) -> Any:
        """Inputs and outputs."""
        try:
            plane = self._models.find(request.name, request.version)
        except WorkerError as error:
            await _refuse(context, error)
        return pb.ModelMetadataResponse(
            name=plane.name,
            versions=self._models.versions(plane.name),
            platform="pytorch",
            inputs=[_metadata(one) for one in plane.model_inputs()],
            outputs=[_metadata(one) for one in plane.model_outputs()],
        )

    async def ModelInfer(self, request: Any, context: Context[Any, Any]) -> Any:
        """One inference."""
        try:
            parsed = read_request(request)
            answer = await self._models.find(parsed.model, parsed.version).infer(parsed)
        except WorkerError as error:
            self._count(request, error.status)
            await _refuse(context, error)
        except asyncio.CancelledError:
            self._count(request, 499)
            raise
        except Exception as error:  # noqa: BLE001 - outermost: told with its traceback, and answered
            self._faults("request failed", error)
            self._count(request, 500)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        self._count(request, 200)
        return write_response(answer, raw=bool(request.raw_input_contents))

    def _count(self, request: Any, status: int) -> None:
        self._models.count("grpc", request.model_name, status)


async def _refuse(context: Context[Any, Any], error: WorkerError) -> NoReturn:
    trailing: tuple[tuple[str, str], ...] = ()
    if error.retry_after_s is not None:
        trailing = (("grpc-retry-pushback-ms", str(error.retry_after_s * 1000)),)
    await context.abort(error.code, str(error), trailing)
    raise AssertionError("abort always raises")


def _metadata(one: TensorMetadata) -> Any:
    return pb.ModelMetadataResponse.TensorMetadata(name=one.name, datatype=one.datatype, shape=one.shape)


def read_request(message: Any) -> InferRequest:
    """A request from its message. Raises InvalidRequest."""
    request = InferRequest(
        message.model_name, message.model_version, message.id, parameters=_parameters(message.parameters)
    )
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InvalidRequest(f"there are {len(raw)} raw contents for {len(message.inputs)} inputs")
    for i, tensor in enumerate(message.inputs):
        name, datatype = tensor.name, tensor.datatype
        if name in request.inputs:
            raise InvalidRequest(f"input {name!r:.80} is there twice")
        if any(key.startswith("shared_memory") for key in tensor.parameters):
            raise InvalidRequest(f"input {name!r:.80}: shared memory is not supported")
        values = from_raw(name, datatype, tuple(tensor.shape), raw[i]) if raw else _contents(tensor)
        request.inputs[name] = (datatype, values)
    request.outputs = tuple(output.name for output in message.outputs)
    for output in message.outputs:
        if output.parameters and any(k == "classification" or k.startswith("shared_memory") for k in output.parameters):
            raise InvalidRequest(f"output {output.name!r:.80}: classification and shared memory are not supported")
    return request


def _contents(tensor: Any) -> Array:
    """The values of a tensor's typed contents. Raises InvalidRequest."""
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise InvalidRequest(
            f"input {tensor.name!r:.80}: {tensor.datatype!r:.40} has no typed contents, send it as raw contents"
        )
    return from_values(tensor.name, tensor.datatype, tuple(tensor.shape), getattr(tensor.contents, field))


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    if not given:
        return {}
    return {key: getattr(one, one.WhichOneof("parameter_choice") or "string_param") for key, one in given.items()}


def write_response(answer: InferResponse, *, raw: bool) -> Any:
    """The message of an answer; as raw contents when the request had raw contents, else typed."""
    message = pb.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=answer.id)
    for key, value in answer.parameters.items():
        if isinstance(value, str):
            message.parameters[key].string_param = value
        else:
            message.parameters[key].int64_param = int(value)
    for name, datatype, values in answer.outputs:
        output = message.outputs.add(name=name, datatype=datatype, shape=values.shape)
        if raw:
            message.raw_output_contents.append(values.tobytes())
        else:
            getattr(output.contents, CONTENTS[datatype]).extend(values.ravel().tolist())
    return message


def grpc_server(face: GrpcFace, max_message_bytes: int) -> grpc.aio.Server:
    """A server without a port yet; messages above the limit get RESOURCE_EXHAUSTED before they are read whole."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
            ("grpc.so_reuseport", 0),  # a second worker on the port must fail to start, not share its requests
        ]
    )
    pb_grpc.add_GRPCInferenceServiceServicer_to_server(face, server)  # type: ignore[no-untyped-call]
    return server
