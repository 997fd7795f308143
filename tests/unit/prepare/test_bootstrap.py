"""Bootstrap data that fits, and data that does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from apparate_worker.model.errors import InvalidBootstrap
from apparate_worker.prepare.bootstrap import load_bootstrap
from support.nets import CPU, IMAGE, TOKENS, pixels, tokens


def saved(folder: Path, **arrays: object) -> Path:
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
    return folder / "data.npz"


def test_data_is_taken_in_its_order(tmp_path: Path):
    x = pixels(80)
    found = load_bootstrap(saved(tmp_path, pixels=x), [IMAGE], 1000)
    assert np.array_equal(found.take([5, 3], CPU)["pixels"].numpy(), x[[5, 3]])


def test_more_records_than_asked_for_are_thinned_evenly(tmp_path: Path):
    x = pixels(200)
    found = load_bootstrap(saved(tmp_path, pixels=x), [IMAGE], 100)
    assert len(found) == 100
    assert np.array_equal(found.arrays["pixels"][[0, -1]], x[[0, -1]])


def test_the_input_that_masks_padding_is_found(tmp_path: Path):
    assert load_bootstrap(saved(tmp_path, **tokens(80, 9)), TOKENS, 1000).mask == 1


def test_padding_that_no_item_of_a_batch_needs_is_left_out(tmp_path: Path):
    data = tokens(80, 9)
    data["attention_mask"][:2] = np.arange(9) < 4
    found = load_bootstrap(saved(tmp_path, **data), TOKENS, 1000).take([0, 1], CPU)
    assert [tuple(t.shape) for t in found.values()] == [(2, 4), (2, 4)]


def test_every_record_is_in_one_batch(tmp_path: Path):
    found = load_bootstrap(saved(tmp_path, **tokens(80, 9)), TOKENS, 1000)
    assert sorted(np.concatenate(list(found.batches(16))).tolist()) == list(range(80))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"image": pixels(80)}, "has no array pixels; it has image"),
        ({"pixels": pixels(80).astype(np.float32)}, "array pixels is float32, expected uint8"),
        ({"pixels": pixels(80)[:, :8]}, r"shape \[80, 8, 16, 3\], expected \['N', 16, 16, 3\]"),
        ({"pixels": pixels(80)[..., 0]}, r"shape \[80, 16, 16\]"),
        ({"pixels": pixels(63)}, "has 63 records, at least 64"),
        ({"pixels": np.array([{}] * 80, object)}, "not an .npz of plain arrays"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_name(tmp_path: Path, arrays: dict[str, object], words: str):
    with pytest.raises(InvalidBootstrap, match=words):
        load_bootstrap(saved(tmp_path, **arrays), [IMAGE], 1000)


def test_arrays_of_different_lengths_are_refused(tmp_path: Path):
    data = tokens(80, 9) | {"attention_mask": np.ones((79, 9), np.int64)}
    with pytest.raises(InvalidBootstrap, match="differ in length"):
        load_bootstrap(saved(tmp_path, **data), TOKENS, 1000)


def test_items_longer_than_allowed_are_refused(tmp_path: Path):
    with pytest.raises(InvalidBootstrap, match="is 65 long, input input_ids allows 64"):
        load_bootstrap(saved(tmp_path, **tokens(80, 65)), TOKENS, 1000)


def test_missing_data_is_named(tmp_path: Path):
    with pytest.raises(InvalidBootstrap, match=r"gone\.npz does not exist"):
        load_bootstrap(tmp_path / "gone.npz", [IMAGE], 1000)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", b"hello"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(InvalidBootstrap, match=r"data\.npz is not an"):
        load_bootstrap(tmp_path / "data.npz", [IMAGE], 1000)


def test_a_single_array_is_refused(tmp_path: Path):
    with (tmp_path / "data.npz").open("wb") as file:
        np.save(file, pixels(80))
    with pytest.raises(InvalidBootstrap, match=r"data\.npz is not an \.npz"):
        load_bootstrap(tmp_path / "data.npz", [IMAGE], 1000)


def test_packed_data_that_was_damaged_is_refused(tmp_path: Path):
    np.savez_compressed(tmp_path / "data.npz", pixels=pixels(80))
    content = bytearray((tmp_path / "data.npz").read_bytes())
    content[100:400] = b"\xff" * 300
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(InvalidBootstrap, match=r"data\.npz is not an"):
        load_bootstrap(tmp_path / "data.npz", [IMAGE], 1000)
