"""A worker whose model runs in ONNX Runtime or as native code, from preparation to answers that leave early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from apparate.contract.document import Document
from apparate.plan import Plan
from apparate_worker.model.onnx_model import OnnxModel
from apparate_worker.model.store import PreparedModel, load_prepared
from apparate_worker.prepare import prepare
from support.eventually import eventually_async
from support.infer import client
from support.models import a_worker, filled, only
from support.nets import CPU, IMAGE, Residual, pixels, seeded, write_model

RAMP = 0
LEAVES = 1.0  # a threshold that lets everybody go


@pytest.fixture(scope="module")
def source() -> nn.Module:
    return seeded(Residual(blocks=2))


@pytest.fixture
def document(tmp_path: Path, source: nn.Module) -> Document:
    serving = {"maxBatch": 4, "device": "cpu", "backend": "onnx"}
    document = write_model(tmp_path, source, {"pixels": pixels(96)}, [IMAGE], arguments="blocks=2", serving=serving)
    prepare(document)
    return document


def request(images: np.ndarray) -> dict[str, object]:
    tensor = {"name": "pixels", "datatype": "UINT8", "shape": list(images.shape), "data": images.ravel().tolist()}
    return {"inputs": [tensor]}


async def test_answers_are_the_sources_and_leave_early_once_a_plan_opens_an_exit(document: Document, source: nn.Module):
    prepared: PreparedModel = load_prepared(document.prepared, document, CPU)
    model, images = prepared.model, pixels(4, seed=9)
    assert isinstance(model, OnnxModel)
    async with a_worker(prepared) as (worker, http, _), client(http) as c:
        plain = (await c.post("/v2/models/tiny/infer", json=request(images))).json()
        plan = Plan.of(1, [RAMP], [LEAVES], prepared.catalog.digest)
        only(worker).apply(plan)
        filled(worker)
        await eventually_async(lambda: sorted(model._pieces.by_begin) == [0, RAMP + 1])
        early = [(await c.post("/v2/models/tiny/infer", json=request(image[None]))).json() for image in images]
    expected = source(torch.from_numpy(images)).numpy()
    outputs = {one["name"]: one["data"] for one in plain["outputs"]}
    np.testing.assert_allclose(np.array(outputs["logits"]).reshape(expected.shape), expected, rtol=1e-4, atol=1e-4)
    assert outputs["label"] == expected.argmax(1).tolist()
    assert [answer["parameters"]["exit_ramp"] for answer in early] == [RAMP] * len(images)


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> tuple[Document, nn.Module]:
    """A model whose segments are native code, and what it was made from."""
    folder, source = tmp_path_factory.mktemp("native"), seeded(Residual(blocks=1))
    serving = {"maxBatch": 4, "device": "cpu", "backend": "compile"}
    document = write_model(folder, source, {"pixels": pixels(96)}, [IMAGE], arguments="blocks=1", serving=serving)
    prepare(document)
    return document, source


@pytest.fixture
def loaded(
    native: tuple[Document, nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PreparedModel]:
    """It, loaded where nothing can be compiled."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    with capture_logs() as lines:
        yield load_prepared(native[0].prepared, native[0], CPU)
    assert [line for line in lines if "back end cannot run here" in line["event"]] == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.compiler
@pytest.mark.timeout(600)  # compiling takes half a minute, and longer where others compute
def test_native_code_answers_any_number_of_rows_as_the_source_does(
    native: tuple[Document, nn.Module], loaded: PreparedModel
):
    backend = loaded.catalog.extra["backend"]
    assert (backend["name"], backend["parity"]["changed"], backend["parity"]["refused"]) == ("compile", 0, "")
    for rows in (1, 2, 3, 4, 5, 7, 8, 16, 17, 33):
        images = torch.from_numpy(pixels(rows, seed=rows))
        with torch.inference_mode():
            expected, found = native[1](images), loaded.model({"pixels": images})
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        assert found.argmax(1).tolist() == expected.argmax(1).tolist()


@pytest.mark.compiler
@pytest.mark.timeout(600)  # compiling takes half a minute, and longer where others compute
async def test_a_worker_loads_native_code_without_compiling_it_again(loaded: PreparedModel):
    images = pixels(4, seed=9)
    async with a_worker(loaded) as (worker, http, _), client(http) as c:
        plain = (await c.post("/v2/models/tiny/infer", json=request(images))).json()
        only(worker).apply(Plan.of(1, [RAMP], [LEAVES], loaded.catalog.digest))
        filled(worker)
        early = [(await c.post("/v2/models/tiny/infer", json=request(image[None]))).json() for image in images]
    assert plain["parameters"]["exit_ramp"] == -1
    assert [answer["parameters"]["exit_ramp"] for answer in early] == [RAMP] * len(images)
