"""Asks a worker for the protocol's extensions with tritonclient and prints what came back as JSON; a process of its
own, as in triton_round_trip.py.

usage: triton_features.py HTTP_ADDRESS GRPC_ADDRESS MODEL ITEMS
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

WIDTH = 16


def main(http_address: str, grpc_address: str, model: str, items: str) -> None:
    x = np.random.default_rng(0).normal(size=(int(items), WIDTH)).astype(np.float32)
    found: dict[str, Any] = {}
    for kind, module, address in (("http", triton_http, http_address), ("grpc", triton_grpc, grpc_address)):
        client = module.InferenceServerClient(address)
        given = module.InferInput("x", x.shape, "FP32")
        given.set_data_from_numpy(x)
        classes = module.InferRequestedOutput("logits", class_count=2)
        answer = client.infer(model, [given], outputs=[classes], parameters={"exit.mode": "off"})
        told: dict[str, Any] = {
            "classes": [[one.decode() for one in row] for row in answer.as_numpy("logits").tolist()]
        }
        told["coded"] = [_coded(client, kind, model, given, coding) for coding in ("gzip", "deflate")]
        try:
            client.infer(model, [given], parameters={"exit.min_confidence": 7.5})
        except module.InferenceServerException as error:
            told["refused"] = error.message()
        statistics, index = client.get_inference_statistics(model), client.get_model_repository_index()
        if kind == "grpc":
            told["success"] = statistics.model_stats[0].inference_stats.success.count
            told["index"] = [[one.name, one.version, one.state] for one in index.models]
        else:
            told["success"] = statistics["model_stats"][0]["inference_stats"]["success"]["count"]
            told["index"] = [[one["name"], one["version"], one["state"]] for one in index]
        found[kind] = told
        client.close()
    print(json.dumps(found))


def _coded(client: Any, kind: str, model: str, given: Any, coding: str) -> list[int]:
    """Labels of a request that is compressed, and over HTTP answered so."""
    options = {"compression_algorithm": coding}
    if kind == "http":
        options = {"request_compression_algorithm": coding, "response_compression_algorithm": coding}
    answer = client.infer(model, [given], model_version="1", **options)
    return answer.as_numpy("label").tolist()  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(*sys.argv[1:])
