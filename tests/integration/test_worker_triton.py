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

SCRIPT = Path(__file__).parents[1] / "support" / "triton_round_trip.py"
TEXTS = np.array([[b"ab"], [b"xyz"]])


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
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, str(SCRIPT), http, grpc, "tiny", str(tmp_path / "inputs.npz"), types),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(child.communicate(), 60)
    assert child.returncode == 0, err.decode()[-3000:]
    found = json.loads(out)
    for kind in ("http binary", "http json", "grpc binary"):
        np.testing.assert_allclose(found[kind]["logits"], wanted, rtol=1e-5, atol=1e-6)
        assert found[kind]["label"] == wanted.argmax(1).tolist()
        assert (found[kind]["exit_ramp"], found[kind]["id"]) == ([-1, -1], "seven")
    assert "not served here" in found["http unknown"]
    assert "not served here" in found["grpc unknown"]
