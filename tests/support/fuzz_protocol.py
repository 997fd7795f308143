"""Feeds a decoder of the protocol with what a fuzzer makes up: it may refuse, and do nothing else that is unforeseen.

usage: fuzz_protocol.py TARGET [options of libFuzzer]    (TARGET: json, binary, built, grpc, coding)

A process of its own, because the fuzzer ends it. What must hold: only WorkerErrors are raised, and no tensor takes far
more memory than the bytes it came in.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["apparate_worker.protocol"]):
    from apparate_worker.protocol import bodies, classification, compression, exits, limits, oip_json, tensors
    from apparate_worker.protocol import grpc as grpc_face

import orjson

from apparate_proto.inference import open_inference_pb2 as pb
from apparate_worker.errors import WorkerError

LIMIT = 1 << 16  # of a body
DATATYPES = (*tensors.DTYPES, tensors.BYTES, "FP8", "")
SIZES = (0, 1, 2, 3, 16, -1, 2**31, 2**63, 2**64, True, 1.5, "2", None, [])
VALUES = (
    0,
    1,
    -1,
    255,
    256,
    1.5,
    1e39,
    1e308,
    2**63,
    2**64,
    -(2**63),
    True,
    None,
    "",
    "a",
    "\ud7ff",
    [],
    [1],
    [[1], 2],
    {},
)


def parse(body: bytes, json_bytes: int | None) -> None:
    """A body as the HTTP face reads it."""
    parsed = oip_json.parse(body, json_bytes, "m", "")
    small(parsed.request.inputs, len(body))
    parameters = parsed.request.parameters
    limits.read_limit(parameters, exits.read_exits(parameters, exits.PARAMETERS, 3).deadline_s, None)
    limits.read_priority(parameters, 1)


def small(inputs: dict[str, Any], size: int) -> None:
    """No tensor is much larger than what it came in: else a small request could take all memory."""
    for name, (datatype, values) in inputs.items():
        assert values.nbytes <= 32 * size + 2**20, f"{name!r}: {datatype} {values.shape} of {size} bytes"


def json(data: bytes) -> None:
    """Any bytes as JSON."""
    parse(data, None)


def binary(data: bytes) -> None:
    """JSON before tensors; the first two bytes say where the one ends."""
    parse(data[2:], int.from_bytes(data[:2], "little"))


def built(data: bytes) -> None:
    """A request that is right but for what the fuzzer chooses."""
    source = atheris.FuzzedDataProvider(data)
    raw, inputs = b"", []
    for i in range(source.ConsumeIntInRange(0, 3)):
        shape = [pick(source, SIZES) for _ in range(source.ConsumeIntInRange(0, 4))]
        tensor: dict[str, Any] = {"name": f"x{i % 2}", "datatype": pick(source, DATATYPES), "shape": shape}
        if source.ConsumeBool():
            part = source.ConsumeBytes(source.ConsumeIntInRange(0, 64))
            size = len(part) if source.ConsumeBool() else pick(source, SIZES)
            tensor["parameters"], raw = {"binary_data_size": size}, raw + part
        else:
            tensor["data"] = [pick(source, VALUES) for _ in range(source.ConsumeIntInRange(0, 16))]
        inputs.append(tensor)
    names = ("timeout", "priority", "binary_data_output", *exits.PARAMETERS)
    parameters = {pick(source, names): pick(source, VALUES) for _ in range(source.ConsumeIntInRange(0, 3))}
    wanted = [
        {
            "name": "logits",
            "parameters": {pick(source, ("binary_data", classification.CLASSIFICATION)): pick(source, VALUES)},
        }
    ]
    head = {"inputs": inputs, "parameters": parameters} | ({"outputs": wanted} if source.ConsumeBool() else {})
    try:
        header = orjson.dumps(head)
    except TypeError:  # numbers that JSON does not have
        return
    parse(header + raw, len(header) if raw or source.ConsumeBool() else None)


def grpc(data: bytes) -> None:
    """Any bytes as a message."""
    message = pb.ModelInferRequest()
    try:
        message.ParseFromString(data)
    except Exception as error:
        if type(error).__name__ != "DecodeError":
            raise
        return
    small(grpc_face.read_request(message).inputs, len(data))


def coding(data: bytes) -> None:
    """Any bytes as a compressed body and as headers."""
    name = (compression.GZIP, compression.DEFLATE)[data[:1] > b"\x7f"]
    assert len(asyncio.run(compression.inflate(data[1:], name, LIMIT))) <= LIMIT


def headers(data: bytes) -> None:
    """Any bytes as the values of headers."""
    names = (b"inference-header-content-length", b"content-encoding", b"accept-encoding", b"expect")
    head = bodies.read_head([(name, value) for name, value in zip(names, data.split(b"\n"), strict=False)])
    asyncio.run(compression.compressed(bytes(2**15), head.accepts))


def pick(source: Any, choices: Any) -> Any:
    return choices[source.ConsumeIntInRange(0, len(choices) - 1)]


TARGETS = {one.__name__: one for one in (json, binary, built, grpc, coding, headers)}


def main() -> None:
    target = TARGETS[sys.argv[1]]

    def once(data: bytes) -> None:
        with contextlib.suppress(WorkerError):
            target(data)

    atheris.Setup([sys.argv[0], *sys.argv[2:]], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
