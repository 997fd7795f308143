"""Messages with wrong bytes, to every call of a worker's process: each is answered, or gets a status that blames it.

EEM_FUZZ_SECONDS is for how long they are sent, EEM_FUZZ_SEED which ones.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from typing import Any

import grpc
import pytest

from apparate_proto.inference import open_inference_pb2 as pb
from support.infer import message
from support.models import items

pytestmark = pytest.mark.conformance
SECONDS = float(os.environ.get("EEM_FUZZ_SECONDS", "1"))
SEED = int(os.environ.get("EEM_FUZZ_SEED", "1"))
LEAST = 200
SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
CALLS = [f"/{SERVICE.full_name}/{method.name}" for method in SERVICE.methods]
CALLS += ["/grpc.health.v1.Health/Check", "/no/Such"]  # reflection is the library's own, and says UNKNOWN
INFER = f"/{SERVICE.full_name}/ModelInfer"
PIECES = (b"", b"\x00", b"\xff", b"\x80\x80\x80\x80", b"\x0a\x00")
CODINGS = (None, grpc.Compression.Gzip, grpc.Compression.Deflate)
CODES = grpc.StatusCode
BLAME_THE_CLIENT = {
    CODES.OK,
    CODES.INVALID_ARGUMENT,
    CODES.NOT_FOUND,
    CODES.PERMISSION_DENIED,
    CODES.RESOURCE_EXHAUSTED,
    CODES.UNIMPLEMENTED,
}


def typed() -> Any:
    """A request with its contents in fields of their type."""
    request = pb.ModelInferRequest(model_name="tiny", id="a")
    request.inputs.add(name="x", datatype="FP32", shape=(1, 16)).contents.fp32_contents.extend([0.0] * 16)
    request.outputs.add(name="logits").parameters["classification"].int64_param = 2
    request.parameters["exit.mode"].string_param = "off"
    return request


SEEDS = [one.SerializeToString() for one in (message(items(1)), typed(), pb.ModelReadyRequest(name="tiny"))]


def changed(data: bytes, dice: random.Random) -> bytes:
    """A few bytes are others, missing or there twice."""
    found = bytearray(data)
    for _ in range(dice.randint(0, 4)):
        at = dice.randrange(len(found) + 1)
        found[at : at + dice.choice([0, 1, 1, 8])] = dice.choice([*PIECES, bytes([dice.randrange(256)])])
    return bytes(found)


def test_a_message_with_wrong_bytes_is_the_clients_fault_whatever_it_calls(apart: Any):
    dice, codes, end = random.Random(SEED), Counter[Any](), time.monotonic() + SECONDS
    with grpc.insecure_channel(apart.grpc) as channel:
        while sum(codes.values()) < LEAST or time.monotonic() < end:
            name = INFER if dice.random() < 0.5 else dice.choice(CALLS)
            data, coding = changed(dice.choice(SEEDS), dice), dice.choice(CODINGS)
            try:
                channel.unary_unary(name)(data, timeout=30, compression=coding)
                code, said = CODES.OK, ""
            except grpc.RpcError as error:
                code, said = error.code(), error.details()
            codes[code] += 1
            assert code in BLAME_THE_CLIENT, (name, data, coding, code, said)
    print(f"{sum(codes.values())} messages: { {code.name: n for code, n in codes.items()} }", file=sys.stderr)
    assert codes[CODES.OK] > LEAST / 20
    apart.is_well()
