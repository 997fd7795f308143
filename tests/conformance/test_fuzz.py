"""A fuzzer makes up bodies, messages and headers: decoders answer with an error of theirs or not at all.

EEM_FUZZ_SECONDS is how long each decoder is tried, EEM_FUZZ_SEED with what. An input that breaks one is printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from apparate_proto.inference import open_inference_pb2 as pb
from apparate_worker.protocol.tensors import DTYPES
from support.infer import binary_body, json_body
from support.models import items

pytestmark = pytest.mark.fuzz
SCRIPT = Path(__file__).parents[1] / "support" / "fuzz_protocol.py"
SECONDS = int(os.environ.get("EEM_FUZZ_SECONDS", "1"))
SEED = os.environ.get("EEM_FUZZ_SEED", "1")


def json_seeds() -> list[bytes]:
    """A request for each datatype, and one with everything."""
    requests = []
    for datatype in (*DTYPES, "BYTES"):
        values = ["a", "b"] if datatype == "BYTES" else [True, False] if datatype == "BOOL" else [0, 1]
        requests.append({"inputs": [{"name": "x", "datatype": datatype, "shape": [1, 2], "data": values}]})
    outputs = [{"name": "logits", "parameters": {"classification": 2, "binary_data": True}}]
    parameters = {"timeout": 5, "priority": 2, "exit.mode": "off", "exit.max_ramp": 1, "exit.min_confidence": 0.5}
    requests.append(json_body(items(2), id="a", outputs=outputs, parameters=parameters))
    return [json.dumps(one).encode() for one in requests]


def binary_seeds() -> list[bytes]:
    body, headers = binary_body(items(2))
    texts = b"".join(len(one).to_bytes(4, "little") + one for one in (b"ab", b"xyz"))
    tensor = {"name": "x", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": len(texts)}}
    head = json.dumps({"inputs": [tensor]}).encode()
    length = int(headers["Inference-Header-Content-Length"])
    return [length.to_bytes(2, "little") + body, len(head).to_bytes(2, "little") + head + texts]


def grpc_seeds() -> list[bytes]:
    raw = pb.ModelInferRequest(model_name="tiny", raw_input_contents=[items(2).astype("<f4").tobytes()])
    raw.inputs.add(name="x", datatype="FP32", shape=(2, 16))
    typed = pb.ModelInferRequest(model_name="tiny", id="a")
    typed.inputs.add(name="x", datatype="INT8", shape=(1, 2)).contents.int_contents.extend([1, -1])
    typed.inputs.add(name="y", datatype="BYTES", shape=(1,)).contents.bytes_contents.append(b"ab")
    typed.parameters["exit.mode"].string_param = "off"
    return [raw.SerializeToString(), typed.SerializeToString()]


def coding_seeds() -> list[bytes]:
    text = json.dumps(json_body(items(4))).encode()
    return [b"\x00" + zlib.compress(text, wbits=31), b"\xff" + zlib.compress(text), b"\xff" + zlib.compress(text)[2:-4]]


SEEDS = {
    "json": json_seeds,
    "binary": binary_seeds,
    "built": lambda: [np.random.default_rng(i).bytes(400) for i in range(20)],
    "grpc": grpc_seeds,
    "coding": coding_seeds,
    "headers": lambda: [b"12\ngzip\ngzip;q=0.5, deflate, *;q=0\n100-continue"],
}


@pytest.mark.parametrize("target", SEEDS)
def test_a_decoder_refuses_what_it_cannot_read_and_does_nothing_unforeseen(target: str, tmp_path: Path):
    for i, seed in enumerate(SEEDS[target]()):
        (tmp_path / f"seed{i}").write_bytes(seed)
    found = tmp_path / "found"
    found.mkdir()
    limits = [f"-max_total_time={SECONDS}", f"-seed={SEED}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"]
    command = [sys.executable, str(SCRIPT), target, *limits, f"-artifact_prefix={found}/", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    inputs = {one.name: one.read_bytes() for one in found.iterdir()}
    assert (done.returncode, inputs) == (0, {}), done.stderr[-4000:]
    runs = [line for line in done.stderr.splitlines() if line.startswith("Done ")]
    assert runs and int(runs[0].split()[1]) > 100 * SECONDS, done.stderr[-1000:]
    print(target, runs[0], file=sys.stderr)
