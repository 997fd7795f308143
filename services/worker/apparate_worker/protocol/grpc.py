"""The gRPC face."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from apparate_proto.inference import open_inference_pb2 as pb
from apparate_worker.errors import InvalidRequest, WorkerError
from apparate_worker.protocol.classification import CLASSIFICATION, read_top
from apparate_worker.protocol.dataplane import InferRequest, InferResponse, Parameter, TensorMetadata
from apparate_worker.protocol.grpc_calls import Calls
from apparate_worker.protocol.health import SERVICE as HEALTH
from apparate_worker.protocol.health import Health
from apparate_worker.protocol.models import Models
from apparate_worker.protocol.oip_json import check_change_parameters
from apparate_worker.protocol.tensors import Array, from_raw, from_values, to_raw
from apparate_worker.tracing import NOTHING, RequestTraces, text

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
CONNECTION_AGE_MS = 3000
"""After this clients are told, before any call fails, to connect anew. A Service chooses a worker for each connection,
so a new worker gets its share; and a worker that stops, which new connections no longer reach, has lost its clients
within the 5 s that its pod waits before it is told to stop. Calls under way are not touched."""
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 30_000),  # a client that is gone without a word, while its call waits, is found out
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # gRPC's own 5 minutes cut off clients that ask sooner
    ("grpc.server_handshake_timeout_ms", 20_000),  # who connects and says nothing; gRPC's own is 2 minutes
    ("grpc.max_concurrent_streams", 1024),  # of one connection; as many as the queue holds by default
)
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


class GrpcFace:
    """inference.GRPCInferenceService over the registry of models. A method takes a message and raises WorkerError."""

    def __init__(self, models: Models, traces: RequestTraces | None = None) -> None:
        self._models, self._traces = models, traces

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """The inference service and the standard's health service, for a server."""
        calls = Calls(SERVICE)
        for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
            if (answer := getattr(self, method.name, None)) is not None:
                kind, infer = getattr(pb, method.input_type.name), method.name == "ModelInfer"
                calls.unary(method.name, kind, answer, with_metadata=infer)
        return calls.handler(), Health(self._models, SERVICE).handler()

    async def ServerLive(self, request: Any) -> Any:
        """Whether the device thread turns."""
        return pb.ServerLiveResponse(live=self._models.live())

    async def ServerReady(self, request: Any) -> Any:
        """Whether requests should be sent here."""
        return pb.ServerReadyResponse(ready=self._models.ready())

    async def ModelReady(self, request: Any) -> Any:
        """The same, for a model that is served here."""
        return pb.ModelReadyResponse(ready=self._models.model_ready(request.name, request.version))

    async def ServerMetadata(self, request: Any) -> Any:
        """Name, version, extensions."""
        return pb.ServerMetadataResponse(**self._models.server_metadata())

    async def ModelMetadata(self, request: Any) -> Any:
        """Inputs and outputs."""
        plane = self._models.find(request.name, request.version)
        return pb.ModelMetadataResponse(
            name=plane.name,
            versions=self._models.versions(plane.name),
            platform="pytorch",
            inputs=[_metadata(one) for one in plane.model_inputs()],
            outputs=[_metadata(one) for one in plane.model_outputs()],
        )

    async def ModelStatistics(self, request: Any) -> Any:
        """What one model has done, or all have."""
        told = self._models.statistics(request.name, request.version)
        return pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics(**one) for one in told])

    async def RepositoryIndex(self, request: Any) -> Any:
        """Every version of every model, and its state."""
        listed = self._models.index(ready=request.ready)
        entry = pb.RepositoryIndexResponse.ModelIndex
        return pb.RepositoryIndexResponse(models=[entry(**vars(one)) for one in listed])

    async def RepositoryModelLoad(self, request: Any) -> Any:
        """Load a model, or the newest version of one that is served."""
        check_change_parameters(request.parameters)
        await self._models.control.load(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any) -> Any:
        """Let go of a model."""
        check_change_parameters(request.parameters)
        await self._models.control.unload(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    async def ModelInfer(self, request: Any, metadata: Callable[[], Any] = tuple) -> Any:
        """One inference."""
        status, span, told = 500, None, NOTHING
        try:
            parsed = read_request(request)
            if self._traces is not None:
                headers = ((name.encode(), text(value)) for name, value in metadata() or ())
                span = parsed.trace = self._traces.begin("grpc", parsed.model, headers)
            answer = await self._models.find(parsed.model, parsed.version).infer(parsed)
            status, told = 200, answer.parameters
        except WorkerError as error:
            status = error.status
            raise
        except asyncio.CancelledError:
            status = 499
            raise
        finally:
            self._models.count("grpc", request.model_name, status)
            if span is not None:
                RequestTraces.finish(span, status, told)
        return write_response(answer, raw=bool(request.raw_input_contents))


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
        if raw and tensor.HasField("contents"):
            raise InvalidRequest(f"input {name!r:.80} has contents beside the request's raw contents")
        values = from_raw(name, datatype, tuple(tensor.shape), raw[i]) if raw else _contents(tensor)
        request.inputs[name] = (datatype, values)
    request.outputs = tuple(output.name for output in message.outputs)
    if len(set(request.outputs)) != len(request.outputs):
        raise InvalidRequest(f"an output is there twice: {list(request.outputs)!r:.200}")
    for output in message.outputs:
        parameters = _parameters(output.parameters)
        if any(key.startswith("shared_memory") for key in parameters):
            raise InvalidRequest(f"output {output.name!r:.80}: shared memory is not supported")
        if CLASSIFICATION in parameters:
            request.top[output.name] = read_top(output.name, parameters[CLASSIFICATION])
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
    """Those parameters that are set."""
    if not given:
        return {}
    kinds = {name: one.WhichOneof("parameter_choice") for name, one in given.items()}
    return {name: getattr(given[name], kind) for name, kind in kinds.items() if kind}


def _write_parameter(into: Any, value: Parameter) -> None:
    if isinstance(value, str):
        into.string_param = value
    elif isinstance(value, bool):
        into.bool_param = value
    elif isinstance(value, int):
        into.int64_param = value
    else:
        into.double_param = value


def write_response(answer: InferResponse, *, raw: bool) -> Any:
    """The message of an answer; as raw contents when the request had raw contents, else typed."""
    message = pb.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=answer.id)
    for name, value in answer.parameters.items():
        _write_parameter(message.parameters[name], value)
    for name, datatype, values in answer.outputs:
        output = message.outputs.add(name=name, datatype=datatype, shape=values.shape)
        if raw:
            message.raw_output_contents.append(to_raw(datatype, values))
        else:
            getattr(output.contents, CONTENTS[datatype]).extend(values.ravel().tolist())
    return message


def grpc_server(face: GrpcFace, max_message_bytes: int) -> grpc.aio.Server:
    """A server without a port yet; messages above the limit get RESOURCE_EXHAUSTED before they are read whole.

    The limit is also that of a compressed message once inflated.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", max_message_bytes),
            ("grpc.max_send_message_length", max_message_bytes),
            ("grpc.max_connection_age_ms", CONNECTION_AGE_MS),
            ("grpc.so_reuseport", 0),  # a second worker on the port must fail to start, not share its requests
            *KEEPALIVE,
        ]
    )
    server.add_generic_rpc_handlers(face.handlers())
    reflection.enable_server_reflection((SERVICE, HEALTH, reflection.SERVICE_NAME), server)
    return server
