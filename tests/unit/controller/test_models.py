from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from apparate.contract.document import InvalidDocument
from apparate_controller.errors import CatalogNotReady
from apparate_controller.loop import ModelLoop
from apparate_controller.models import Models, load_catalog, load_models
from apparate_controller.ports import Ports
from support.control import CATALOG, DOCUMENT, a_document, prepare
from support.eventually import eventually_async
from support.fakes import FakeFeedbackSource, FakeHeartbeats, FakeObserver, FakePlanSink, FakeSession


def new_loop(model, catalog):
    def new_session(plan):
        return FakeSession(plan, catalog=catalog.digest)

    ports = Ports(FakeFeedbackSource(), FakePlanSink(), FakeHeartbeats(), FakeObserver())
    return ModelLoop(model.document.model.key, catalog, new_session, ports)


@contextlib.asynccontextmanager
async def running(folder, *names):
    models = Models(load_models([a_document(folder, *names)]), new_loop, retry_s=0.02)
    task = asyncio.create_task(models.run())
    try:
        yield models
    finally:
        models.stop()
        await asyncio.wait_for(task, 5)


async def test_a_model_without_a_catalog_does_not_stop_the_others_and_says_why(tmp_path):
    path = a_document(tmp_path, "good", "bad")
    (tmp_path / "prepared/default/bad/catalog.json").unlink()
    models = Models(load_models([path]), new_loop, retry_s=0.02)
    task = asyncio.create_task(models.run())
    await eventually_async(lambda: not models.find("default", "good").problem)
    assert "not prepared yet" in models.find("default", "bad").problem
    prepare(tmp_path, "bad")
    await eventually_async(lambda: not models.find("default", "bad").problem)
    models.stop()
    await asyncio.wait_for(task, 5)


async def test_a_changed_catalog_starts_the_model_anew(tmp_path):
    async with running(tmp_path) as models:
        await eventually_async(lambda: models.find("default", "m").loop is not None)
        before = models.find("default", "m").loop
        changed = {**CATALOG.to_json(), "digest": "other"}
        (tmp_path / "prepared/default/m/catalog.json").write_text(json.dumps(changed))
        await eventually_async(lambda: models.find("default", "m").loop.catalog.digest == "other")
        assert models.find("default", "m").loop is not before


async def test_a_catalog_that_breaks_while_in_use_changes_nothing(tmp_path):
    async with running(tmp_path) as models:
        await eventually_async(lambda: not models.find("default", "m").problem)
        before = models.find("default", "m").loop
        (tmp_path / "prepared/default/m/catalog.json").write_text("{")
        await asyncio.sleep(0.1)
        assert models.find("default", "m").loop is before and not before.problem


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"batch_sizes": [1], "T": "x", "o": [[1]], "full": [1]}'])
def test_an_unusable_catalog_is_refused_with_its_path(tmp_path, text):
    path = tmp_path / "catalog.json"
    path.write_text(text)
    with pytest.raises(CatalogNotReady, match=r"catalog\.json cannot be used"):
        load_catalog(path)


def test_a_model_in_two_files_is_refused(tmp_path):
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(DOCUMENT % "m")
    with pytest.raises(InvalidDocument, match="in another file too"):
        load_models([tmp_path / "a.yaml", tmp_path / "b.yaml"])
