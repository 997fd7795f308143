"""Models, data and prepared models in S3, against a server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from apparate.contract.document import Document
from apparate_worker.prepare.failures import PrepareFailure
from apparate_worker.prepare.in_cluster import remove_others_s3
from apparate_worker.prepare.transfer import download_s3, upload_s3
from support.models_on_kubernetes import a_model
from support.s3 import S3, an_s3


@pytest.fixture
def s3() -> Iterator[S3]:
    with an_s3() as server:
        yield server


def keys(server: S3, key: str = "key") -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": server.url}


def test_an_object_is_fetched_as_a_file(s3: S3, tmp_path: Path):
    s3.objects["bucket/models/a.safetensors"] = b"weights"
    found = download_s3("s3://bucket/models/a.safetensors", tmp_path / "in", keys(s3))
    assert found == tmp_path / "in" / "a.safetensors"
    assert found.read_bytes() == b"weights"


def test_a_prefix_is_fetched_as_a_folder_without_its_neighbours(s3: S3, tmp_path: Path):
    s3.objects |= {"bucket/bert/config.json": b"{}", "bucket/bert/a/b": b"x", "bucket/bert-large/c": b"no"}
    folder = download_s3("s3://bucket/bert", tmp_path, keys(s3))
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == ["a/b", "config.json"]


def test_what_is_stored_comes_back_and_its_catalog_comes_last(s3: S3, tmp_path: Path):
    folder = tmp_path / "out"
    folder.mkdir()
    for name in ("catalog.json", "model.safetensors", "segments.json"):
        (folder / name).write_text(name)
    upload_s3(folder, "s3://bucket/prepared/r1", keys(s3), last="catalog.json")
    assert s3.order[-1] == "bucket/prepared/r1/catalog.json"
    back = download_s3("s3://bucket/prepared/r1", tmp_path / "back", keys(s3))
    assert (back / "segments.json").read_text() == "segments.json"


def a_store(s3: S3) -> Document:
    """Revisions of shop/resnet in s3://bucket/prepared, and what else may be there."""
    for revision in ("aaaaaaaa", "bbbbbbbb", "cccccccc"):
        for name in ("a.safetensors", "catalog.json"):
            s3.objects[f"bucket/prepared/{revision}/shop/resnet/{name}"] = b"x"
    for other in ("bbbbbbbb/shop/resnet-50/f", "bbbbbbbb/lab/resnet/f", "notes/shop/resnet/f", "readme"):
        s3.objects[f"bucket/prepared/{other}"] = b"x"
    return Document(a_model(), Path("/"))


def test_old_revisions_are_removed_from_the_store_and_nothing_else(s3: S3):
    document = a_store(s3)
    before = set(s3.objects)
    remove_others_s3("s3://bucket/prepared/", document, {"aaaaaaaa", "cccccccc"}, keys(s3))
    old = "bucket/prepared/bbbbbbbb/shop/resnet"
    assert before - set(s3.objects) == {f"{old}/catalog.json", f"{old}/a.safetensors"}
    assert s3.removed[0] == f"{old}/catalog.json"  # what is half removed is no prepared model


def test_a_store_from_which_nothing_may_be_removed_keeps_old_revisions(s3: S3):
    document = a_store(s3)
    s3.removable = False
    remove_others_s3("s3://bucket/prepared", document, {"aaaaaaaa"}, keys(s3))
    assert not s3.removed


def test_revisions_at_the_root_of_a_bucket_are_found(s3: S3):
    s3.objects["bucket/bbbbbbbb/shop/resnet/catalog.json"] = b"x"
    remove_others_s3("s3://bucket", Document(a_model(), Path("/")), {"aaaaaaaa"}, keys(s3))
    assert not s3.objects


@pytest.mark.parametrize(
    ("secrets", "reason", "says"),
    [
        ({"AWS_ACCESS_KEY_ID": "key"}, "SecretLacksKey", "AWS_SECRET_ACCESS_KEY"),
        ({"AWS_ACCESS_KEY_ID": "wrong", "AWS_SECRET_ACCESS_KEY": "x"}, "SourceForbidden", "keys of the Secret"),
        ({"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "x"}, "SourceNotFound", "s3://bucket/nothing"),
    ],
)
def test_what_is_wrong_with_a_source_is_said(s3: S3, tmp_path: Path, secrets: dict[str, str], reason: str, says: str):
    with pytest.raises(PrepareFailure, match=says) as failed:
        download_s3("s3://bucket/nothing", tmp_path, secrets | {"AWS_ENDPOINT_URL": s3.url})
    assert failed.value.reason == reason
    assert not failed.value.passing
