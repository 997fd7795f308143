"""Asks a worker with tritonclient and prints what came back as JSON. A process of its own: tritonclient brings its own
copy of the protocol's messages, and one process cannot hold two.

usage: triton_round_trip.py HTTP_ADDRESS GRPC_ADDRESS MODEL INPUTS.npz DATATYPES.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http


def main(http_address: str, grpc_address: str, model: str, inputs: str, datatypes: str) -> None:
    arrays, types = dict(np.load(inputs)), json.loads(datatypes)
    found: dict[str, Any] = {}
    for kind, module, address in (("http", triton_http, http_address), ("grpc", triton_grpc, grpc_address)):
        client = module.InferenceServerClient(address)
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model)
        metadata = client.get_model_metadata(model)
        names = [one["name"] for one in metadata["inputs"]] if kind == "http" else [one.name for one in metadata.inputs]
        assert names == list(types), names
        for binary in (True, False) if kind == "http" else (True,):
            wanted = [_input(module, name, arrays[name], types[name], binary) for name in types]
            options = {"binary_data": binary} if kind == "http" else {}
            outputs = [module.InferRequestedOutput(name, **options) for name in ("logits", "label", "exit_ramp")]
            answer = client.infer(model, wanted, outputs=outputs, request_id="seven", timeout=20_000_000)
            response = answer.get_response()
            identity = response["id"] if kind == "http" else response.id
            values = {name: answer.as_numpy(name).tolist() for name in ("logits", "label", "exit_ramp")}
            found[f"{kind} {'binary' if binary else 'json'}"] = values | {"id": identity}
        try:
            client.infer("other", [_input(module, n, arrays[n], types[n], True) for n in types])
        except module.InferenceServerException as error:
            found[f"{kind} unknown"] = str(error)
        client.close()
    print(json.dumps(found))


def _input(module: Any, name: str, values: Any, datatype: str, binary: bool) -> Any:
    if datatype == "BF16":
        values, binary = values.view(ml_dtypes.bfloat16), True  # it has no JSON form
    if datatype == "BYTES":
        values = values.astype(np.object_)
    given = module.InferInput(name, values.shape, datatype)
    if module is triton_http:
        given.set_data_from_numpy(values, binary_data=binary or datatype == "FP16")
    else:
        given.set_data_from_numpy(values)
    return given


if __name__ == "__main__":
    main(*sys.argv[1:])
