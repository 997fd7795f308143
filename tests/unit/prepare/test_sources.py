"""Sources of a model as paths in the pod, and what is said when there is nothing."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path
from typing import Any

import pytest

from apparate.contract.document import Document
from apparate.contract.resource import EarlyExitModel
from apparate_worker.model.errors import InvalidSource, UnsupportedModel
from apparate_worker.prepare.failures import PrepareFailure, failure_of
from apparate_worker.prepare.in_cluster import remove_others
from apparate_worker.prepare.sources import local_document, secrets_of
from apparate_worker.prepare.transfer import split_hub


def a_model(source: str, data: str, **bootstrap: Any) -> EarlyExitModel:
    spec = {"model": {"source": source, "entrypoint": "m:f"}, "bootstrap": {"data": data, **bootstrap}}
    return EarlyExitModel.model_validate({"metadata": {"name": "resnet", "namespace": "shop"}, "spec": spec})


def local(folder: Path, source: str, data: str, **bootstrap: Any) -> Document:
    model = a_model(source, data, **bootstrap)
    return local_document(model, mounted=folder, scratch=folder / "scratch", store=folder / "store", environ={})


def touch(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_claim_is_read_where_it_is_mounted(tmp_path: Path):
    weights, data = touch(tmp_path / "pvc/models/a/b.pt"), touch(tmp_path / "pvc/models/d.npz")
    document = local(tmp_path, "pvc://models/a/b.pt", "pvc://models/d.npz")
    assert (document.source, document.bootstrap_data, document.base) == (weights, data, weights.parent)
    assert document.prepared == tmp_path / "store/shop/resnet"


def test_an_image_is_read_at_its_root_or_where_images_have_models_by_custom(tmp_path: Path):
    touch(tmp_path / "oci/model/models/config.json")
    data = touch(tmp_path / "oci/data/inputs.npz")
    document = local(tmp_path, "oci://r/m:1", "oci://r/d:1")
    assert document.source == tmp_path / "oci/model/models"
    assert document.bootstrap_data == data


def test_a_path_of_the_image_is_taken_as_it_is(tmp_path: Path):
    weights, data = touch(tmp_path / "a.pt"), touch(tmp_path / "d.npz")
    assert local(tmp_path, f"file://{weights}", f"file://{data}").source == weights


def test_what_is_not_there_is_named_as_the_user_named_it(tmp_path: Path):
    with pytest.raises(PrepareFailure, match=r"pvc://models/no\.pt does not exist") as failed:
        local(tmp_path, "pvc://models/no.pt", "pvc://models/d.npz")
    assert (failed.value.reason, failed.value.status) == ("SourceNotFound", 2)


def test_data_that_differs_from_its_checksum_is_refused(tmp_path: Path):
    touch(tmp_path / "pvc/m/a.pt")
    touch(tmp_path / "pvc/m/d.npz", "data")
    right = hashlib.sha256(b"data").hexdigest()
    assert local(tmp_path, "pvc://m/a.pt", "pvc://m/d.npz", sha256=right)
    with pytest.raises(PrepareFailure, match="expects 0000") as failed:
        local(tmp_path, "pvc://m/a.pt", "pvc://m/d.npz", sha256="0" * 64)
    assert failed.value.reason == "SourceDiffers"


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("hf://owner/name", ("owner/name", None, "")),
        ("hf://owner/name@v1", ("owner/name", "v1", "")),
        ("hf://owner/name@v1/data/a.npz", ("owner/name", "v1", "data/a.npz")),
    ],
)
def test_parts_of_a_hub_url(url: str, parts: tuple[str, str | None, str]):
    assert split_hub(url) == parts


def test_each_secret_has_its_own_prefix():
    environ = {"MODEL_HF_TOKEN": "a", "DATA_HF_TOKEN": "b", "HOME": "/"}
    assert secrets_of("DATA_", environ) == {"HF_TOKEN": "b"}


@pytest.mark.parametrize(
    ("error", "reason", "status"),
    [
        (InvalidSource("SHA-256 of a is b, the document expects c"), "SourceDiffers", 2),
        (UnsupportedModel("no sites"), "PrepareFailed", 2),
        (OSError(errno.ENOSPC, "No space left on device"), "StorageFull", 1),
        (OSError(errno.EROFS, "Read-only file system"), "StorageRefused", 2),
        (RuntimeError("CUDA out of memory"), "PrepareFailed", 1),
    ],
    ids=lambda value: str(value),
)
def test_every_error_has_a_reason_and_says_whether_trying_again_helps(error: Exception, reason: str, status: int):
    found = failure_of(error)
    assert (found.reason, found.status) == (reason, status)


def test_only_unused_revisions_of_the_same_model_are_removed(tmp_path: Path):
    store = tmp_path / "store"
    used, old = touch(store / "aaaaaaaa/shop/resnet/f"), touch(store / "bbbbbbbb/shop/resnet/f")
    others = touch(store / "bbbbbbbb/shop/bert/f"), touch(store / "notes/shop/resnet/f")
    document = Document(a_model("file:///a", "file:///b"), tmp_path)
    remove_others(store, document, {"aaaaaaaa"})
    assert used.exists()
    assert not old.exists()
    assert all(one.exists() for one in others)
