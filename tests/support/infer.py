"""Asking a worker in tests, over HTTP and gRPC."""

from __future__ import annotations

import json
from typing import Any

import grpc
import httpx
import numpy as np

from apparate_proto.inference import open_inference_pb2 as pb
from apparate_proto.inference import open_inference_pb2_grpc as pb_grpc

URL = "/v2/models/tiny/infer"


def json_body(x: np.ndarray, **other: Any) -> dict[str, Any]:
    """A request of the rows of `x`, all JSON."""
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": list(x.shape), "data": x.ravel().tolist()}], **other}


def binary_body(x: np.ndarray, **other: Any) -> tuple[bytes, dict[str, str]]:
    """(body, headers) of a request with binary tensors, both ways."""
    data = x.astype("<f4").tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape), "parameters": {"binary_data_size": len(data)}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}, **other}).encode()
    return header + data, {"Inference-Header-Content-Length": str(len(header))}


def client(address: str, **options: Any) -> httpx.AsyncClient:
    """An HTTP client of one worker."""
    limits = httpx.Limits(max_connections=1000, max_keepalive_connections=1000)
    return httpx.AsyncClient(base_url=f"http://{address}", timeout=60, limits=limits, **options)


async def ask(http: httpx.AsyncClient, x: np.ndarray, **other: Any) -> dict[str, Any]:
    """The answer to a JSON request; fails unless it is 200."""
    response = await http.post(URL, json=json_body(x, **other))
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def scores(answer: dict[str, Any]) -> np.ndarray:
    """The first output of a JSON answer."""
    output = answer["outputs"][0]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def message(x: np.ndarray, **other: Any) -> Any:
    """A gRPC request of the rows of `x` as raw contents."""
    request = pb.ModelInferRequest(model_name="tiny", raw_input_contents=[x.astype("<f4").tobytes()], **other)
    request.inputs.add(name="x", datatype="FP32", shape=x.shape)
    return request


def stub(channel: grpc.aio.Channel) -> Any:
    """The service on a channel."""
    return pb_grpc.GRPCInferenceServiceStub(channel)
