"""Models, data and prepared models in S3, against a server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from apparate_worker.prepare.failures import PrepareFailure
from apparate_worker.prepare.transfer import download_s3, upload_s3
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
