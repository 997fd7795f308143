"""The requests: of each model 64 different inputs, in the form that each server reads fastest."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

Arrays = Mapping[str, npt.NDArray[Any]]
COUNT = 64  # different requests
TOKENS = (24, 32)  # of a sentence; filled up to the larger number, so that every server can batch every request
DATATYPES = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}
JSON, BINARY, BASE64, RAW = "json", "binary", "base64", "raw"


@dataclass(frozen=True)
class Traffic:
    """What is sent to one model: arrays [64, ...] by input, and what it must answer [64, C]."""

    model: str
    inputs: Arrays
    scores: npt.NDArray[np.float32]

    def body(self, row: int, form: str) -> tuple[bytes, dict[str, str]]:
        """One request and its headers."""
        one = {name: values[row : row + 1] for name, values in self.inputs.items()}
        return FORMS[form](one)

    def write(self, folder: Path, form: str) -> dict[str, str]:
        """Write every request into a folder as 1, 2, ...; their common headers."""
        folder.mkdir(parents=True, exist_ok=True)
        headers: dict[str, str] = {}
        for row in range(COUNT):
            body, headers = self.body(row, form)
            (folder / str(row + 1)).write_bytes(body)
        return headers


def _json(one: Arrays) -> tuple[bytes, dict[str, str]]:
    inputs = [_about(name, values) | {"data": values.ravel()} for name, values in one.items()]
    body = orjson.dumps({"inputs": inputs}, option=orjson.OPT_SERIALIZE_NUMPY)
    return body, {"content-type": "application/json"}


def _binary(one: Arrays) -> tuple[bytes, dict[str, str]]:
    inputs = [_about(n, v) | {"parameters": {"binary_data_size": v.nbytes}} for n, v in one.items()]
    header = orjson.dumps({"inputs": inputs})
    body = b"".join([header, *(values.tobytes() for values in one.values())])
    return body, {"content-type": "application/octet-stream", "inference-header-content-length": str(len(header))}


def _base64(one: Arrays) -> tuple[bytes, dict[str, str]]:
    inputs = [
        {"name": name, "datatype": "BYTES", "shape": [1], "data": [base64.b64encode(values.tobytes()).decode()]}
        for name, values in one.items()
    ]
    return orjson.dumps({"inputs": inputs}), {"content-type": "application/json"}


def _raw(one: Arrays) -> tuple[bytes, dict[str, str]]:
    (values,) = one.values()
    return values.tobytes(), {"content-type": "application/octet-stream"}


def _about(name: str, values: npt.NDArray[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPES[values.dtype.name], "shape": list(values.shape)}


FORMS: dict[str, Callable[[Arrays], tuple[bytes, dict[str, str]]]] = {
    JSON: _json,
    BINARY: _binary,
    BASE64: _base64,
    RAW: _raw,
}


def of_scenario(name: str, file: Path) -> dict[str, npt.NDArray[Any]]:
    """64 inputs of a scenario's traffic, spread over all of it."""
    with np.load(file) as arrays:
        if name != "text":
            values = {key: arrays[key] for key in arrays.files}
            rows = np.linspace(0, len(next(iter(values.values()))) - 1, COUNT).astype(int)
            return {key: np.ascontiguousarray(one[rows]) for key, one in values.items()}
        least, most = TOKENS
        fit = np.flatnonzero((arrays["lengths"] >= least) & (arrays["lengths"] <= most))
        rows = fit[np.linspace(0, len(fit) - 1, COUNT).astype(int)]
        return {key: np.ascontiguousarray(arrays[key][rows, :most]) for key in ("input_ids", "attention_mask")}
