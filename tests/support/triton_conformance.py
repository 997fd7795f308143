"""Asks a worker all there is to ask with one kind of tritonclient and prints what came back as JSON.

A process of its own: tritonclient brings its own copy of the protocol's messages, and one process cannot hold two.

usage: triton_conformance.py WHAT KIND ADDRESS MODEL INPUTS.npz DATATYPES.json
(WHAT: everything, or changes, which unloads and loads the model; KIND: http, http.aio, grpc, grpc.aio)
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import sys
from typing import Any

import ml_dtypes
import numpy as np
from tritonclient.utils import InferenceServerException

OUTPUTS = ("logits", "label", "exit_ramp")


class Asking:
    """One client; what it gives back is awaited where it must be."""

    def __init__(self, kind: str, address: str, model: str, arrays: dict[str, Any], types: dict[str, str]) -> None:
        self.module, self.grpc = importlib.import_module(f"tritonclient.{kind}"), kind.startswith("grpc")
        self.client = self.module.InferenceServerClient(address)
        self.model, self.arrays, self.types = model, arrays, types

    async def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        found = getattr(self.client, name)(*args, **options)
        return await found if inspect.isawaitable(found) else found

    def inputs(self, *, binary: bool = True) -> list[Any]:
        return [self.an_input(name, self.arrays[name], binary=binary) for name in self.types]

    def an_input(self, name: str, values: Any, *, binary: bool = True) -> Any:
        datatype = self.types[name]
        if datatype == "BF16":
            values, binary = values.view(ml_dtypes.bfloat16), True  # it has no JSON form
        if datatype == "BYTES":
            values = values.astype(np.object_)
        given = self.module.InferInput(name, values.shape, datatype)
        options = {} if self.grpc else {"binary_data": binary or datatype == "FP16"}  # this client writes no FP16
        given.set_data_from_numpy(values, **options)
        return given

    def outputs(self, *, binary: bool = True, **options: Any) -> list[Any]:
        kind = {} if self.grpc else {"binary_data": binary}
        return [self.module.InferRequestedOutput(name, **kind, **options) for name in OUTPUTS]

    async def infer(self, *, binary: bool = True, **options: Any) -> dict[str, Any]:
        """Outputs, id and parameters of an answer."""
        inputs = options.pop("inputs", None) or self.inputs(binary=binary)
        answer = await self("infer", self.model, inputs, outputs=self.outputs(binary=binary), **options)
        response = answer.get_response(as_json=True) if self.grpc else answer.get_response()
        return {name: answer.as_numpy(name).tolist() for name in OUTPUTS} | {"id": response.get("id")}

    async def refusal(self, *args: Any, **options: Any) -> str:
        """What the client says of a call that must fail."""
        try:
            await self(*args, **options)
        except InferenceServerException as error:
            return str(error)
        return "it did not fail"


async def everything(ask: Asking) -> dict[str, Any]:
    """By what was asked."""
    found: dict[str, Any] = {}
    model, as_json = ask.model, {"as_json": True} if ask.grpc else {}
    found["live"] = [await ask(f"is_server_{what}") for what in ("live", "ready")]
    found["model ready"] = [await ask("is_model_ready", model), await ask("is_model_ready", model, "1")]
    found["server"] = await ask("get_server_metadata", **as_json)
    found["model"] = await ask("get_model_metadata", model, **as_json)
    found["binary"] = await ask.infer(request_id="seven", timeout=20_000_000)
    if not ask.grpc:
        found["json"] = await ask.infer(binary=False, request_id="seven")
    for coding in ("gzip", "deflate"):
        kinds = (
            ("compression_algorithm",)
            if ask.grpc
            else ("request_compression_algorithm", "response_compression_algorithm")
        )
        found[coding] = await ask.infer(request_id="seven", **dict.fromkeys(kinds, coding))
    found["options"] = await ask.infer(request_id="seven", priority=2, parameters={"exit.mode": "off"})
    answer = await ask("infer", model, ask.inputs(), outputs=[ask.module.InferRequestedOutput("logits", class_count=2)])
    found["classes"] = [[text.decode() for text in row] for row in answer.as_numpy("logits")]
    answer = await ask("infer", model, ask.inputs())
    found["default outputs"] = sorted(name for name in OUTPUTS if answer.as_numpy(name) is not None)
    found["statistics"] = await ask("get_inference_statistics", model, **as_json)
    found["index"] = await ask("get_model_repository_index", **as_json)
    first = next(iter(ask.types))
    found["unknown model"] = await ask.refusal("infer", "other", ask.inputs())
    found["missing input"] = await ask.refusal("infer", model, ask.inputs()[1:])
    wrong = [ask.an_input(first, ask.arrays[first][:, :2]), *ask.inputs()[1:]]
    found["wrong shape"] = await ask.refusal("infer", model, wrong)
    found["bad option"] = await ask.refusal("infer", model, ask.inputs(), parameters={"exit.mode": "sometimes"})
    found["unload"] = await ask.refusal("unload_model", model)
    several = [ask.infer(request_id=str(i)) for i in range(8)]
    found["several"] = [one["id"] for one in await asyncio.gather(*several)]
    await ask("close")
    return found


async def changes(ask: Asking) -> dict[str, Any]:
    """What is there, and what an inference gives, after each change of a model that is served at first."""
    found: dict[str, Any] = {"before": await state(ask)}
    await ask("unload_model", ask.model)
    found["unloaded"] = await state(ask)
    await ask("load_model", ask.model)
    found["loaded"] = await state(ask)
    await ask("load_model", ask.model)
    found["replaced"] = await state(ask)
    found["unknown"] = await ask.refusal("load_model", "other")
    found["with files"] = await ask.refusal("load_model", ask.model, config="{}")
    await ask("close")
    return found


async def state(ask: Asking) -> dict[str, Any]:
    """Of the model: versions and states in the index, but for those that are leaving, and what an inference says."""
    as_json = {"as_json": True} if ask.grpc else {}
    told = await ask("get_model_repository_index", **as_json)
    index = (told.get("models", []) if ask.grpc else told) if told else []
    listed = [(one["version"], one["state"]) for one in index if one["name"] == ask.model]
    try:
        answer = await ask("infer", ask.model, ask.inputs())
    except InferenceServerException as error:
        said = str(error)
    else:
        response = answer.get_response(as_json=True) if ask.grpc else answer.get_response()
        said = response["model_version"]
    return {"index": [one for one in listed if one[1] != "UNLOADING"], "infer": said}


async def main(what: str, kind: str, address: str, model: str, inputs: str, datatypes: str) -> None:
    ask = Asking(kind, address, model, dict(np.load(inputs)), json.loads(datatypes))
    print(json.dumps(await {"everything": everything, "changes": changes}[what](ask)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
