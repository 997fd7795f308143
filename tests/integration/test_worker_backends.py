"""A worker whose model runs in ONNX Runtime, from preparation to answers that leave early."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
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
