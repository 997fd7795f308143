"""The protocol's own client talks to a worker, with every datatype, over HTTP and gRPC."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import torch

from apparate.contract.resource import TensorSpec
from apparate_worker.engine import as_tensor
from apparate_worker.protocol.tensors import DTYPES
from support.models import a_prepared_model, a_worker

SUPPORT = Path(__file__).parents[1] / "support"
TEXTS = np.array([[b"ab"], [b"xyz"]])


async def told_by(script, *arguments):
    """What a script of tritonclient's prints."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, str(SUPPORT / script), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 0, err.decode()[-3000:]
    return json.loads(out)


async def test_tritonclient_round_trips_every_datatype_over_http_and_grpc(tmp_path):
    specs = [TensorSpec(name=d.lower(), datatype=d, shape=(3,)) for d in DTYPES]
    specs.append(TensorSpec(name="bytes", datatype="BYTES", shape=(1,)))
    arrays = {d.lower(): np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype) for d, dtype in DTYPES.items()}
    prepared = a_prepared_model(inputs=specs)
    tensors = {name: as_tensor(values) for name, values in arrays.items()}
    rows = np.zeros((2, 1, 3), np.uint8)
    rows[0, 0, :2], rows[1, 0] = list(b"ab"), list(b"xyz")
    wanted = prepared.model(tensors | {"bytes": torch.from_numpy(rows)}).numpy()
    stored = arrays | {"bf16": arrays["bf16"].view(np.uint16), "bytes": TEXTS}
    np.savez(tmp_path / "inputs.npz", **stored)
    types = json.dumps({spec.name: spec.datatype for spec in specs})
    async with a_worker(prepared) as (_, http, grpc):
        found = await told_by("triton_round_trip.py", http, grpc, "tiny", str(tmp_path / "inputs.npz"), types)
    for kind in ("http binary", "http json", "grpc binary"):
        np.testing.assert_allclose(found[kind]["logits"], wanted, rtol=1e-5, atol=1e-6)
        assert found[kind]["label"] == wanted.argmax(1).tolist()
        assert (found[kind]["exit_ramp"], found[kind]["id"]) == ([-1, -1], "seven")
    assert "not served here" in found["http unknown"]
    assert "not served here" in found["grpc unknown"]


async def test_tritonclient_finds_the_extensions_over_http_and_grpc():
    prepared = a_prepared_model(classes=900)  # its answers are large enough to be compressed
    async with a_worker(prepared) as (_, http, grpc):
        found = await told_by("triton_features.py", http, grpc, "tiny", "3")
    for number, kind in enumerate(("http", "grpc")):
        told = found[kind]
        best = [int(row[0].split(":")[1]) for row in told["classes"]]
        assert [len(row) for row in told["classes"]] == [2, 2, 2]
        assert all(row[0].endswith(f":class{index}") for row, index in zip(told["classes"], best, strict=True))
        assert told["coded"] == [best, best]
        assert "exit.min_confidence is 7.5, must be a number within 0..1" in told["refused"]
        assert told["success"] == 3 * (number + 1)
        assert told["index"] == [["tiny", "1", "READY"]]
    assert found["http"]["classes"] == found["grpc"]["classes"]
