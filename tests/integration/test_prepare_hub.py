"""Models and data from a Hugging Face Hub, against a server on loopback."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from apparate_worker.prepare.failures import PrepareFailure
from apparate_worker.prepare.transfer import download_hub
from support.hub import Hub, a_hub

BERT = {"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"pickle", "run.py": b"code"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with a_hub() as server:
        server.files["model", "owner/bert"] = BERT
        server.files["dataset", "owner/texts"] = {"inputs.npz": b"records"}
        asked_of(monkeypatch, server.url)
        yield server


def asked_of(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """What HF_ENDPOINT does when the library is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if p.is_file()}


def test_a_repository_is_fetched_without_pickles_and_code(hub: Hub, tmp_path: Path):
    found = download_hub("hf://owner/bert", tmp_path, {}, ("model",))
    assert found == tmp_path
    assert names(tmp_path) == {"config.json", "model.safetensors"}
    assert (tmp_path / "model.safetensors").read_bytes() == b"weights"


def test_one_file_of_a_data_set_is_fetched(hub: Hub, tmp_path: Path):
    found = download_hub("hf://owner/texts@main/inputs.npz", tmp_path, {}, ("dataset", "model"))
    assert found.read_bytes() == b"records"


def test_a_private_repository_is_fetched_with_the_token_of_the_secret(hub: Hub, tmp_path: Path):
    hub.private.add("owner/bert")
    download_hub("hf://owner/bert", tmp_path, {"HF_TOKEN": "right"}, ("model",))
    assert names(tmp_path) == {"config.json", "model.safetensors"}


@pytest.mark.parametrize(
    ("url", "secrets"),
    [
        ("hf://owner/nobody", {}),
        ("hf://owner/bert@v9", {}),
        ("hf://owner/bert@main/no.npz", {}),
        ("hf://owner/secret", {}),
        ("hf://owner/secret", {"HF_TOKEN": "wrong"}),
    ],
    ids=["repository", "revision", "file", "no-token", "wrong-token"],
)
def test_what_is_not_there_or_not_for_us_is_told_and_not_tried_again(
    hub: Hub, tmp_path: Path, url: str, secrets: dict[str, str]
):
    hub.files["model", "owner/secret"] = BERT
    hub.private.add("owner/secret")
    with pytest.raises(PrepareFailure, match="does not exist, or needs HF_TOKEN") as failed:
        download_hub(url, tmp_path, secrets, ("model",))
    assert (failed.value.reason, failed.value.passing) == ("SourceNotFound", False)


@pytest.mark.parametrize(
    ("url", "answers"),
    [("hf://owner/bert", False), ("hf://owner/texts/inputs.npz", False), ("hf://owner/bert", True)],
    ids=["repository", "file", "repository-of-a-hub-with-trouble"],
)
def test_a_hub_that_cannot_be_reached_is_told_and_tried_again(
    hub: Hub, tmp_path: Path, url: str, answers: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(time, "sleep", lambda _: None)  # the library tries again for 20 s
    hub.down = True
    if not answers:
        asked_of(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(PrepareFailure, match="cannot be reached: ") as failed:
        download_hub(url, tmp_path, {}, ("dataset", "model"))
    assert (failed.value.reason, failed.value.passing) == ("SourceNotFound", True)
