"""Open Inference Protocol bytes of the demo's client: requests made before they are sent, answers read afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate_demo.scenarios.scenario import LENGTHS
from apparate_proto.inference import open_inference_pb2 as pb

GRPC_METHOD = "/inference.GRPCInferenceService/ModelInfer"
GRPC_LIVE = "/inference.GRPCInferenceService/ServerLive"
DATATYPES = {
    "bool": "BOOL",
    **{f"{kind}{bits}": f"{kind}{bits}".upper() for kind in ("uint", "int") for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"FP{bits}" for bits in (16, 32, 64)},
}
FINAL = -1  # exit ramp of an answer that was the model's own
HEADER_LENGTH = "inference-header-content-length"


class BadAnswer(ValueError):
    """An answer that is no classification; the message says what is wrong with it."""


@dataclass(frozen=True)
class Answer:
    """What an answer says: the class with the highest score, the ramp it left at (FINAL: none), the plan's revision."""

    label: int
    exit_ramp: int
    revision: int


@dataclass(frozen=True)
class Traffic:
    """The inputs of a scenario, in order: array [N, ...] for each input, and how much of each row is real."""

    arrays: Mapping[str, npt.NDArray[Any]]
    lengths: npt.NDArray[np.int64] | None = None

    @classmethod
    def load(cls, path: Path) -> Traffic:
        """From the .npz of a work folder."""
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return cls(arrays, arrays.pop(LENGTHS, None))

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def item(self, index: int) -> dict[str, npt.NDArray[Any]]:
        """One input of each name, [1, ...], without padding."""
        if self.lengths is None:
            return {name: values[index : index + 1] for name, values in self.arrays.items()}
        return {name: values[index : index + 1, : self.lengths[index]] for name, values in self.arrays.items()}


def grpc_request(model: str, item: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """A serialised ModelInferRequest with raw contents."""
    request = pb.ModelInferRequest(model_name=model)
    for name, values in item.items():
        request.inputs.add(name=name, datatype=DATATYPES[str(values.dtype)], shape=values.shape)
        request.raw_input_contents.append(np.ascontiguousarray(values).tobytes())
    return request.SerializeToString()


def http_request(model: str, host: str, item: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """A whole HTTP/1.1 infer request with binary tensor data."""
    inputs, binary = [], []
    for name, values in item.items():
        data = np.ascontiguousarray(values).tobytes()
        parameters = {"binary_data_size": len(data)}
        datatype = DATATYPES[str(values.dtype)]
        inputs.append({"name": name, "datatype": datatype, "shape": list(values.shape), "parameters": parameters})
        binary.append(data)
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([header, *binary])
    head = (
        f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def http_get(path: str, host: str) -> bytes:
    """A whole HTTP/1.1 GET request."""
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def read_grpc(data: bytes) -> Answer:
    """The answer in a serialised ModelInferResponse. Raises BadAnswer."""
    response = pb.ModelInferResponse.FromString(data)
    if len(response.outputs) < 1:
        raise BadAnswer("the answer has no output")
    if response.raw_output_contents:
        scores = np.frombuffer(response.raw_output_contents[0], np.float32)
    else:
        scores = np.array(response.outputs[0].contents.fp32_contents, np.float32)
    parameters = {
        k: getattr(v, v.WhichOneof("parameter_choice") or "int64_param") for k, v in response.parameters.items()
    }
    return _answer(scores, parameters)


def read_http(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """The answer in an HTTP response with or without binary tensor data. Raises BadAnswer."""
    if status != 200:
        raise BadAnswer(f"HTTP {status}: {body[:200].decode(errors='replace')}")
    size = int(headers.get(HEADER_LENGTH, len(body)))
    response = json.loads(body[:size])
    output = response["outputs"][0]
    if "data" in output:
        scores = np.array(output["data"], np.float32)
    else:
        scores = np.frombuffer(body, np.float32, output["parameters"]["binary_data_size"] // 4, offset=size)
    return _answer(scores, response.get("parameters", {}))


def _answer(scores: npt.NDArray[np.float32], parameters: Mapping[str, Any]) -> Answer:
    if not scores.size or np.isnan(scores).any():
        raise BadAnswer(f"the answer's scores are {scores.tolist()}")
    return Answer(
        int(scores.argmax()), int(parameters.get("exit_ramp", FINAL)), int(parameters.get("plan_revision", 0))
    )
