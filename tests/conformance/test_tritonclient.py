"""The protocol's own client asks a worker for all there is, in each of its four kinds and with every datatype."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from apparate.contract.resource import TensorSpec
from apparate_worker.engine import as_tensor
from apparate_worker.protocol.tensors import DTYPES
from support.models import a_prepared_model, items, write_prepared
from support.processes import a_process
from support.worker_process import COMMAND, environ, faults, ready

pytestmark = pytest.mark.conformance
SCRIPT = Path(__file__).parents[1] / "support" / "triton_conformance.py"
WAYS = ("binary", "json", "gzip", "deflate", "options")
KINDS = ("http", "http.aio", "grpc", "grpc.aio")
SPECS = [
    *(TensorSpec(name=d.lower(), datatype=d, shape=(3,)) for d in DTYPES),
    TensorSpec(name="bytes", datatype="BYTES", shape=(1,)),
]
ARRAYS = {d.lower(): np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype) for d, dtype in DTYPES.items()}
TEXTS = np.array([[b"ab"], [b"xyz"]])


def PREPARED():
    return a_prepared_model(inputs=SPECS)


@pytest.fixture(scope="module")
def told(served, tmp_path_factory):
    """By kind of client, what it was told."""
    inputs = tmp_path_factory.mktemp("inputs") / "inputs.npz"
    np.savez(inputs, **(ARRAYS | {"bf16": ARRAYS["bf16"].view(np.uint16), "bytes": TEXTS}))
    types = json.dumps({spec.name: spec.datatype for spec in SPECS})

    return told_by_all("everything", served.http, served.grpc, lambda kind: "tiny", inputs, types)


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """By kind of client, what it was told while it unloaded and loaded a model of a worker that allows it."""
    folder = tmp_path_factory.mktemp("models")
    documents = [write_prepared(folder, name=name_of(kind), serving={"device": "cpu"}).read_text() for kind in KINDS]
    (folder / "tiny.yaml").write_text("\n---\n".join(documents))
    np.savez(folder / "inputs.npz", x=items(1))
    with a_process(COMMAND, environ(folder, MODEL_CONTROL="explicit")) as process:
        said = ready(process)
        found = told_by_all(
            "changes", said["http"], said["grpc"], name_of, folder / "inputs.npz", json.dumps({"x": "FP32"})
        )
        assert (process.popen.poll(), faults(process)) == (None, [])
        yield found


def name_of(kind):
    """The model that one kind of client may change."""
    return f"model-{kind.replace('.', '-')}"


def told_by_all(what, http, grpc, name, inputs, types):
    """By kind of client, what each was told, all at a time."""

    async def one(kind):
        address = grpc if kind.startswith("grpc") else http
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, str(SCRIPT), what, kind, address, name(kind), str(inputs), types),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(child.communicate(), 60)
        assert child.returncode == 0, f"{kind}: {err.decode()[-3000:]}"
        return kind, json.loads(out)

    async def all_of_them():
        return dict(await asyncio.gather(*map(one, KINDS)))

    return asyncio.run(all_of_them())


def the_models_own():
    rows = np.zeros((2, 1, 3), np.uint8)
    rows[0, 0, :2], rows[1, 0] = list(b"ab"), list(b"xyz")
    tensors = {name: as_tensor(values) for name, values in ARRAYS.items()}
    return PREPARED().model(tensors | {"bytes": torch.from_numpy(rows)}).numpy()


@pytest.mark.parametrize(("kind", "way"), [(k, w) for k in KINDS for w in WAYS if w != "json" or k.startswith("http")])
def test_every_datatype_reaches_the_model_and_the_answer_the_client(told, kind, way):
    answer, wanted = told[kind][way], the_models_own()
    np.testing.assert_allclose(answer["logits"], wanted, rtol=1e-5, atol=1e-6)
    assert answer["label"] == wanted.argmax(1).tolist()
    assert (answer["exit_ramp"], answer["id"]) == ([-1, -1], "seven")


@pytest.mark.parametrize("kind", KINDS)
def test_health_and_metadata_are_as_the_client_expects_them(told, kind):
    found = told[kind]
    assert found["live"] == found["model ready"] == [True, True]
    assert found["server"]["name"] == "apparate" and "classification" in found["server"]["extensions"]
    named = [(one["name"], one["datatype"], [int(n) for n in one["shape"]]) for one in found["model"]["inputs"]]
    assert named == [(spec.name, spec.datatype, [-1, *spec.shape]) for spec in SPECS]
    assert (found["model"]["name"], found["model"]["versions"]) == ("tiny", ["1"])


@pytest.mark.parametrize("kind", KINDS)
def test_extensions_are_as_the_client_expects_them(told, kind):
    found, wanted = told[kind], the_models_own()
    best = np.argsort(-wanted, 1)[:, :2].tolist()
    named = [[f"{index}:class{index}" for index in row] for row in best]
    assert [[text.partition(":")[2] for text in row] for row in found["classes"]] == named
    assert found["default outputs"] == ["label", "logits"]
    statistics = found["statistics"]["model_stats"][0]
    assert (statistics["name"], int(statistics["inference_stats"]["success"]["count"]) > 3) == ("tiny", True)
    listed = found["index"]["models"] if kind.startswith("grpc") else found["index"]
    assert [(one["name"], one["version"], one["state"]) for one in listed] == [("tiny", "1", "READY")]
    assert found["several"] == [str(i) for i in range(8)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("unknown model", "model 'other' is not served here"),
        ("missing input", "input 'bool' is missing"),
        ("wrong shape", "input 'bool' has shape [2, 2], expected [-1, 3]"),
        ("bad option", "parameter exit.mode is 'sometimes', must be one of: default, off"),
        ("unload", "EEM_WORKER_"),
    ],
)
def test_the_client_shows_why_a_request_is_refused(told, kind, what, said):
    assert said in told[kind][what]


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_unloads_and_loads_a_model_and_sees_it_in_the_index(changed, kind):
    found, name = changed[kind], name_of(kind)
    assert found["before"] == {"index": [["1", "READY"]], "infer": "1"}
    assert found["unloaded"]["index"] == [["1", "UNAVAILABLE"]]
    assert f"model '{name}' is not loaded: unloaded" in found["unloaded"]["infer"]
    assert found["loaded"] == {"index": [["2", "READY"]], "infer": "2"}
    assert found["replaced"] == {"index": [["3", "READY"]], "infer": "3"}
    assert "other" in found["unknown"] and "config" in found["with files"]
