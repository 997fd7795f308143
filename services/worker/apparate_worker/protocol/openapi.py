"""The HTTP face as an OpenAPI 3.1 document, made of what the code knows: for people, client generators and tests.

Without models it is the reference; with them the names of models and what their inputs look like stand in it too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from apparate import __version__
from apparate_worker.protocol.dataplane import Dataplane, TensorMetadata
from apparate_worker.protocol.exits import MAX_DEADLINE_MS, MODES
from apparate_worker.protocol.models import State
from apparate_worker.protocol.tensors import BYTES, DTYPES, MAX_DIMENSIONS

Json = dict[str, Any]
DATATYPES = (*DTYPES, BYTES)
MOST_VALUES = 4096  # of an item that is written out value by value
WHOLE, SINGLE = {"type": "integer", "minimum": 0}, {"type": ["string", "number", "boolean", "null"]}
TEXT = {"type": "string"}
ERRORS = {
    400: "The request cannot be understood or does not fit the model; the message names input, value and limit.",
    403: "The document does not allow clients to do that.",
    404: "Another model or version than are served here.",
    405: "Another method is wanted here.",
    413: "A body above the limit.",
    429: "The queue is full; with Retry-After.",
    500: "The model raised on this request.",
    503: "Starting, draining, or the device is lost; with Retry-After.",
    504: "No answer within the time limit.",
}


def document(planes: Sequence[Dataplane] = ()) -> Json:
    """The document, of these served models."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Apparate worker: Open Inference Protocol, version 2",
            "version": __version__,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _paths(planes),
        "components": {"schemas": _schemas() | {k: v for one in planes for k, v in _of_model(one).items()}},
    }


def _paths(planes: Sequence[Dataplane]) -> Json:
    model = _path_parameter("model", "Name of a served model.", [one.name for one in planes])
    version = _path_parameter("version", "A version of it.", sorted({one.version for one in planes}))
    paths: Json = {
        "/v2": _get("Name, version and extensions of the server", "ServerMetadata"),
        "/v2/health/live": _get("Whether the device turns", "Live", 503),
        "/v2/health/ready": _get("Whether requests should be sent here", "Ready", 503),
        "/v2/models/stats": _get("Statistics of all models", "Statistics"),
        "/v2/repository/index": {
            "post": {
                "summary": "Every version of every model, its state and why",
                "operationId": "index",
                "requestBody": _body(_ref("IndexRequest"), required=False),
                "responses": _answers("Index", 400, 413),
            }
        },
        "/metrics": _text("Metrics, for Prometheus", "text/plain"),
        "/openapi.json": _text("This document", "application/json"),
    }
    for what, words in (("load", "Load a model of this worker's documents"), ("unload", "Unload a model")):
        change = {"requestBody": _body(_ref("ChangeRequest"), required=False), "operationId": what, "summary": words}
        answers = _answers("Changed", 400, 403, 404, 413, 503)
        change_path = f"/v2/repository/models/{{model}}/{what}"
        paths[change_path] = {"parameters": [model], "post": change | {"responses": answers}}
    for path, parameters in (
        ("/v2/models/{model}", [model]),
        ("/v2/models/{model}/versions/{version}", [model, version]),
    ):
        suffix = "Version" if len(parameters) > 1 else ""
        paths |= {
            path: _get("Versions, inputs and outputs", "ModelMetadata", 404, 503, id_="metadata" + suffix),
            f"{path}/ready": _get("Whether this model takes requests", "ModelReady", 404, 503, id_="ready" + suffix),
            f"{path}/stats": _get("Statistics of one model", "Statistics", 404, 503, id_="stats" + suffix),
            f"{path}/infer": {"post": _infer(planes, "infer" + suffix)},
        }
        for name in (path, f"{path}/ready", f"{path}/stats", f"{path}/infer"):
            paths[name]["parameters"] = parameters
    return paths


def _path_parameter(name: str, words: str, known: Sequence[str]) -> Json:
    kind: Json = {"type": "string", "minLength": 1, "maxLength": 200}
    schema = {"anyOf": [{"enum": list(known)}, kind]} if known else kind
    return {"name": name, "in": "path", "required": True, "description": words, "schema": schema}


def _get(words: str, answer: str, *errors: int, id_: str = "") -> Json:
    operation: Json = {"summary": words, "operationId": id_ or answer[0].lower() + answer[1:]}
    answers = _answers(answer, *errors)
    if 503 in errors and answer in ("Live", "Ready", "ModelReady"):  # says the same, with false
        answers["503"] = _content(ERRORS[503], {"anyOf": [_ref(answer), _ref("Error")]})
    return {"get": operation | {"responses": answers}}


def _text(words: str, kind: str) -> Json:
    schema = {"type": "object"} if kind.endswith("json") else TEXT
    answers = {"200": {"description": words, "content": {kind: {"schema": schema}}}}
    return {"get": {"summary": words, "operationId": words.split()[0].strip(",").lower(), "responses": answers}}


def _infer(planes: Sequence[Dataplane], id_: str) -> Json:
    wanted = [_ref("InferRequest"), *(_ref(f"InferRequest.{one.name}") for one in planes)]
    body = _body({"anyOf": wanted} if planes else wanted[0])
    body["content"]["application/json"] |= {"examples": {one.name: {"value": _example(one)} for one in planes}}
    body["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    answers = _answers("InferResponse", 400, 404, 413, 429, 500, 503, 504)
    answers["200"]["headers"] = {
        "Inference-Header-Content-Length": {
            "description": "Bytes of JSON at the start of the body; what follows are tensors.",
            "schema": WHOLE,
        }
    }
    answers["200"]["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    head = {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "required": False,
        "description": "Bytes of JSON at the start of the body; binary tensors follow them. Only with those.",
        "schema": {"type": "integer", "minimum": 0, "maximum": 10**12 - 1},
    }
    return {
        "summary": "One inference",
        "operationId": id_,
        "parameters": [head],
        "requestBody": body,
        "responses": answers,
    }


def _answers(schema: str, *errors: int) -> Json:
    return {"200": _content("Done.", _ref(schema))} | {str(one): _content(ERRORS[one], _ref("Error")) for one in errors}


def _content(words: str, schema: Json) -> Json:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _body(schema: Json, *, required: bool = True) -> Json:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: Sequence[str] = (), **properties: Json) -> Json:
    return {"type": "object", "required": list(required), "properties": properties}


def _list(items: Json, **limits: int) -> Json:
    return {"type": "array", "items": items, **limits}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _parameters(**known: Json) -> Json:
    return _or_null({"type": "object", "properties": known, "additionalProperties": SINGLE})


def _answered(**properties: Json) -> Json:
    """An answer's object: everything is there, and nothing else."""
    return _object(list(properties), **properties) | {"additionalProperties": False}


def _schemas() -> Json:
    values = _list(SINGLE)
    for _ in range(2):  # nested, in truth, as deep as the shape is long
        values = _list({"anyOf": [SINGLE, values]})
    shape = _list({"type": "integer", "minimum": 0}, maxItems=MAX_DIMENSIONS)
    tensor = _object(
        ("name", "datatype", "shape"),
        name=TEXT,
        datatype={"enum": list(DATATYPES)},
        shape=shape,
        data=values | {"description": "Flat or nested values; missing where the tensor is binary data."},
        parameters=_parameters(binary_data_size=_or_null(WHOLE)),
    )
    output = _object(
        ("name",),
        name=TEXT,
        parameters=_parameters(
            binary_data=_or_null({"type": "boolean"}),
            classification=_or_null(WHOLE | {"description": "The best so many classes, as `score:index:name`."}),
        ),
    )
    counted = _answered(count=WHOLE, ns=WHOLE)
    computed = dict.fromkeys(("compute_input", "compute_infer", "compute_output"), counted)
    request_parameters: Json = {
        "binary_data_output": _or_null({"type": "boolean"}),
        "timeout": _or_null({"type": ["integer", "string"], "description": "Microseconds; 0: no limit."}),
        "priority": _or_null({"type": ["integer", "string"], "description": "1 high, 2 and more low."}),
        "exit.mode": _or_null({"enum": list(MODES)}),
        "exit.max_ramp": _or_null({"type": ["integer", "string"]}),
        "exit.min_confidence": _or_null({"type": ["number", "string"]}),
        "exit.deadline_ms": _or_null({"type": ["number", "string"], "maximum": MAX_DEADLINE_MS}),
    }
    return {
        "Error": _answered(error=TEXT),
        "ServerMetadata": _answered(name=TEXT, version=TEXT, extensions=_list(TEXT)),
        "Live": _answered(live={"type": "boolean"}),
        "Ready": _answered(ready={"type": "boolean"}),
        "ModelReady": _answered(name=TEXT, ready={"type": "boolean"}),
        "TensorMetadata": _answered(
            name=TEXT, datatype={"enum": list(DATATYPES)}, shape=_list({"type": "integer", "minimum": -1})
        ),
        "ModelMetadata": _answered(
            name=TEXT,
            versions=_list(TEXT),
            platform=TEXT,
            inputs=_list(_ref("TensorMetadata")),
            outputs=_list(_ref("TensorMetadata")),
        ),
        "Statistics": _answered(
            model_stats=_list(
                _answered(
                    name=TEXT,
                    version=TEXT,
                    last_inference=WHOLE | {"description": "Milliseconds since 1970."},
                    inference_count=WHOLE,
                    execution_count=WHOLE,
                    inference_stats=_answered(
                        success=counted, fail=counted, queue=counted, cache_hit=counted, **computed
                    ),
                    batch_stats=_list(_answered(batch_size=WHOLE, **computed)),
                )
            )
        ),
        "ChangeRequest": _object(parameters=_parameters(unload_dependents=SINGLE) | {"additionalProperties": False}),
        "Changed": _answered(),
        "IndexRequest": _object(ready=_or_null({"type": "boolean"})),
        "Index": _list(_answered(name=TEXT, version=TEXT, state={"enum": [str(one) for one in State]}, reason=TEXT)),
        "RequestInput": tensor,
        "RequestOutput": output,
        "RequestParameters": _parameters(**request_parameters),
        "InferRequest": _request(_list(_ref("RequestInput"))),
        "ResponseOutput": _object(
            ("name", "datatype", "shape"),
            name=TEXT,
            datatype={"enum": list(DATATYPES)},
            shape=_list(WHOLE),
            data=_list(SINGLE),
            parameters=_object(binary_data_size=WHOLE),
        )
        | {"additionalProperties": False},
        "InferResponse": _object(
            ("model_name", "model_version", "outputs"),
            model_name=TEXT,
            model_version=TEXT,
            id=TEXT,
            parameters=_object(
                ("plan_revision", "exit_ramp", "exit_layer", "error_score"),
                plan_revision=WHOLE,
                exit_ramp={"type": "integer", "minimum": -1},
                exit_layer=TEXT,
                error_score={"type": "number", "minimum": 0, "maximum": 1},
            ),
            outputs=_list(_ref("ResponseOutput")),
        )
        | {"additionalProperties": False},
    }


def _request(inputs: Json) -> Json:
    return _object(
        ("inputs",),
        id=_or_null(TEXT),
        parameters=_ref("RequestParameters"),
        inputs=inputs,
        outputs=_or_null(_list(_ref("RequestOutput"))),
    )


def _of_model(plane: Dataplane) -> Json:
    """A request of one item of this model, written out: what fits this is answered."""
    inputs = [_one_item(one, _size(one)) for one in plane.model_inputs()]
    limits = {"minItems": len(inputs), "maxItems": len(inputs)}
    names = [one.name for one in plane.model_outputs()]
    known: Json = {"exit.mode": {"enum": list(MODES)}, "priority": {"enum": [0, 1, 2]}}
    parameters = _object(**known)
    output = _object(("name",), name={"enum": names}) | {"additionalProperties": False}
    wanted = _request({"type": "array", "prefixItems": inputs, "items": False, **limits})
    wanted["properties"] |= {
        "outputs": _list(output, maxItems=len(names)) | {"uniqueItems": True},
        "parameters": parameters | {"additionalProperties": False},
    }
    return {f"InferRequest.{plane.name}": wanted}


def _size(tensor: TensorMetadata) -> tuple[int, ...]:
    return (1, *(1 if size == -1 else size for size in tensor.shape[1:]))


def _one_item(tensor: TensorMetadata, shape: tuple[int, ...]) -> Json:
    count = math.prod(shape)
    many = {"minItems": count, "maxItems": count} if count <= MOST_VALUES else {}
    written = _object(
        ("name", "datatype", "shape", "data"),
        name={"const": tensor.name},
        datatype={"const": tensor.datatype},
        shape={"const": list(shape)},
        data=_list(_value(tensor.datatype), **many),
    )
    return written | {"additionalProperties": False}


def _value(datatype: str) -> Json:
    if datatype == BYTES:
        return {"type": "string", "minLength": 1, "maxLength": 8}
    if datatype == "BOOL":
        return {"type": "boolean"}
    if datatype.startswith(("UINT", "INT")):
        return {"type": "integer", "minimum": 0, "maximum": 1}
    return {"type": "number", "minimum": -1e4, "maximum": 1e4}


def _example(plane: Dataplane) -> Json:
    """A request that is answered; binary-only datatypes have none in JSON."""
    example = {BYTES: "a", "BOOL": True}
    inputs = []
    for one in plane.model_inputs():
        shape = _size(one)
        value = example.get(one.datatype, 1)
        inputs.append(
            {"name": one.name, "datatype": one.datatype, "shape": list(shape), "data": [value] * math.prod(shape)}
        )
    return {"inputs": inputs}
