"""The protocol's HTTP bodies: a JSON header, and behind it the tensors that travel as binary data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from apparate.contract.source import TensorSpec
from apparate_worker.errors import InvalidRequest
from apparate_worker.protocol.classification import CLASSIFICATION, read_top
from apparate_worker.protocol.dataplane import InferRequest, InferResponse
from apparate_worker.protocol.tensors import BYTES, DTYPES, from_json, from_raw, padded, to_json, to_raw

WORDS = {"dict": "an object", "list": "a list", "str": "a string", "bool": "true or false"}
BINARY_SIZE, BINARY_DATA, BINARY_OUTPUT = "binary_data_size", "binary_data", "binary_data_output"


@dataclass(slots=True)
class ParsedRequest:
    """A request, and which of its outputs are wanted as binary data."""

    request: InferRequest
    binary: frozenset[str] | None
    """Names; None for all."""


def parse(body: bytes, header_length: int | None, model: str, version: str) -> ParsedRequest:
    """Read an infer request; arrays are views of `body` where they came as binary data. Raises InvalidRequest.

    header_length: bytes of JSON at the start of the body, None when the whole body is JSON.
    """
    if header_length is None:
        header_length = len(body)
    if not 0 <= header_length <= len(body):
        raise InvalidRequest(f"Inference-Header-Content-Length is {header_length}, the body has {len(body)} bytes")
    view = memoryview(body)
    try:
        header = orjson.loads(view[:header_length])
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request is not JSON: {error}") from None
    _expect(header, dict, "the request")
    parameters = _parameters(header, "parameters")
    request = InferRequest(model, version, _optional(header, "id", str, "id"), parameters=parameters)
    at = header_length
    for tensor in _expect(header.get("inputs"), list, "inputs"):
        at = _input(request, tensor, view, at)
    if at != len(body):
        raise InvalidRequest(f"{len(body) - at} bytes follow the last tensor's binary data")
    return ParsedRequest(request, _outputs(request, header, _flag(parameters, BINARY_OUTPUT, False)))


def parse_raw(body: bytes, model: str, version: str, inputs: Sequence[TensorSpec]) -> ParsedRequest:
    """Read a body that is nothing but the values of one item of a model's only input; all outputs come as binary data.

    A BYTES input is one element, the body as it is. Raises InvalidRequest.
    """
    if len(inputs) != 1:
        names = [spec.name for spec in inputs]
        raise InvalidRequest(
            f"a body without JSON is for models with one input, this one takes {names}: send JSON first"
        )
    spec = inputs[0]
    if spec.datatype == BYTES:
        values = padded(spec.name, [body], [1, *(1 for _ in spec.shape)])
    else:
        values = from_raw(spec.name, spec.datatype, _deduced(spec, len(body)), body)
    return ParsedRequest(InferRequest(model, version, inputs={spec.name: (spec.datatype, values)}), None)


def _deduced(spec: TensorSpec, size: int) -> list[int]:
    """The shape of one item in so many bytes; at most one dimension may vary. Raises InvalidRequest."""
    if spec.shape.count(-1) > 1:
        raise InvalidRequest(f"input {spec.name!r} has shape {[-1, *spec.shape]}: it does not follow from {size} bytes")
    fixed = math.prod(known for known in spec.shape if known != -1) * DTYPES[spec.datatype].itemsize
    return [1, *(size // fixed if known == -1 else known for known in spec.shape)]


def read_index(body: bytes) -> bool:
    """Whether a request for the repository's index asks for ready models only. Raises InvalidRequest."""
    if not body.strip():
        return False
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the request is not JSON: {error}") from None
    return bool(_optional(_expect(asked, dict, "the request"), "ready", bool, "ready"))


def check_change(body: bytes) -> None:
    """Refuse a request to load or unload a model that wants more than that. Raises InvalidRequest."""
    if body.strip():
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"the request is not JSON: {error}") from None
        check_change_parameters(_parameters(_expect(asked, dict, "the request"), "parameters"))


def check_change_parameters(names: Iterable[str]) -> None:
    """The same for its parameters, whose values do not matter. Raises InvalidRequest."""
    for name in names:
        if name != "unload_dependents":  # clients write it; here no model depends on another
            raise InvalidRequest(f"parameter {name!r:.80} is not supported: a model is loaded as its document says")


def _input(request: InferRequest, tensor: Any, view: memoryview, at: int) -> int:
    """Read one input; where the next one's binary data starts."""
    _expect(tensor, dict, "each of inputs")
    name = _expect(tensor.get("name"), str, "the name of an input")
    if name in request.inputs:
        raise InvalidRequest(f"input {name!r:.80} is there twice")
    datatype = _expect(tensor.get("datatype"), str, f"datatype of input {name!r:.80}")
    shape = _expect(tensor.get("shape"), list, f"shape of input {name!r:.80}")
    parameters = _parameters(tensor, f"parameters of input {name!r:.80}")
    if any(key.startswith("shared_memory") for key in parameters):
        raise InvalidRequest(f"input {name!r:.80}: shared memory is not supported")
    size = parameters.get(BINARY_SIZE)
    if size is None:
        request.inputs[name] = (datatype, from_json(name, datatype, shape, tensor.get("data")))
        return at
    if type(size) is not int or not 0 <= size <= len(view) - at:
        raise InvalidRequest(f"input {name!r:.80}: binary_data_size is {size!r:.40}, {len(view) - at} bytes are left")
    request.inputs[name] = (datatype, from_raw(name, datatype, shape, view[at : at + size]))
    return at + size


def _outputs(request: InferRequest, header: dict[str, Any], all_binary: bool) -> frozenset[str] | None:
    """Note the outputs that are wanted; which of them as binary data."""
    names, binary = [], set()
    for output in _optional(header, "outputs", list, "outputs"):
        _expect(output, dict, "each of outputs")
        name = _expect(output.get("name"), str, "the name of an output")
        parameters = _parameters(output, f"parameters of output {name!r:.80}")
        if any(key.startswith("shared_memory") for key in parameters):
            raise InvalidRequest(f"output {name!r:.80}: shared memory is not supported")
        if name in names:
            raise InvalidRequest(f"output {name!r:.80} is there twice")
        names.append(name)
        if CLASSIFICATION in parameters:
            request.top[name] = read_top(name, parameters[CLASSIFICATION])
        if _flag(parameters, BINARY_DATA, all_binary):
            binary.add(name)
    request.outputs = tuple(names)
    return frozenset(binary) if names or not all_binary else None


def _expect(value: Any, kind: type[Any], what: str) -> Any:
    if not isinstance(value, kind):
        raise InvalidRequest(f"{what} must be {WORDS[kind.__name__]}, this is {type(value).__name__}")
    return value


def _optional(given: dict[str, Any], name: str, kind: type[Any], what: str) -> Any:
    """An optional field; null, which many clients write for what they do not set, is as if it were missing."""
    value = given.get(name)
    return kind() if value is None else _expect(value, kind, what)


def _parameters(given: dict[str, Any], what: str) -> dict[str, Any]:
    """Those parameters that are set."""
    found = {name: value for name, value in _optional(given, "parameters", dict, what).items() if value is not None}
    for name, value in found.items():
        if isinstance(value, dict | list):
            raise InvalidRequest(f"{what}: {name!r:.80} is {WORDS[type(value).__name__]}, must be a single value")
    return found


def _flag(parameters: dict[str, Any], name: str, default: bool) -> bool:
    return bool(_expect(parameters.get(name, default), bool, f"parameter {name}"))


def render(response: InferResponse, binary: frozenset[str] | None) -> tuple[bytes, int | None]:
    """(body, bytes of JSON at its start; None when all of it is JSON)."""
    outputs: list[dict[str, Any]] = []
    tail: list[bytes] = []
    for name, datatype, values in response.outputs:
        output: dict[str, Any] = {"name": name, "datatype": datatype, "shape": values.shape}
        if binary is None or name in binary:
            data = to_raw(datatype, values)
            output["parameters"] = {BINARY_SIZE: len(data)}
            tail.append(data)
        else:
            output["data"] = to_json(datatype, values)
        outputs.append(output)
    answer: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        answer["id"] = response.id
    header = orjson.dumps(
        answer | {"parameters": response.parameters, "outputs": outputs}, option=orjson.OPT_SERIALIZE_NUMPY
    )
    if not tail:
        return header, None
    return b"".join((header, *tail)), len(header)
