import io
import json

import numpy as np
import pytest

from apparate.catalog import InvalidCatalog
from apparate.contract.recording import (
    InvalidRecording,
    read_catalog,
    read_recording,
    recording_of,
    write_recording,
)
from support.method import even_catalog


def arrays(n=4, columns=2, **changed):
    rng = np.random.default_rng(0)
    table = {
        "err": rng.random((n, columns)).astype(np.float32),
        "top1": rng.integers(0, 3, (n, columns)),
        "final": rng.integers(0, 3, n),
        "batch": rng.integers(1, 5, n),
    }
    return {name: a for name, a in {**table, **changed}.items() if a is not None}


@pytest.mark.parametrize("name", ["run.npz", "run.parquet", "run"])
def test_a_recording_is_read_as_it_was_written(tmp_path, name):
    written = recording_of(arrays())
    write_recording(tmp_path / name, written)
    read = read_recording(tmp_path / name)
    for field in ("err", "top1", "final", "batch"):
        assert np.array_equal(getattr(read, field), getattr(written, field)), field


def test_a_recording_may_bring_its_catalog_and_the_indices_of_its_columns(tmp_path):
    catalog = even_catalog(2, batch_sizes=(1, 4))
    changed = {"catalog": np.array(json.dumps(catalog.to_json())), "ramps": np.array([3, 5])}
    write_recording(tmp_path / "run.npz", recording_of(arrays(**changed)))
    read = read_recording(tmp_path / "run.npz")
    assert read.ramps == (3, 5)
    assert read.catalog is not None
    assert read.catalog.digest == catalog.digest


def test_without_batch_sizes_every_request_was_served_alone():
    assert recording_of(arrays(batch=None)).batch.tolist() == [1, 1, 1, 1]


def test_requests_that_a_chosen_ramp_did_not_report_on_are_left_out():
    table = arrays()
    table["err"][1, 0], table["top1"][1, 0] = np.nan, -1
    recording = recording_of(table)
    assert len(recording.records([0, 1])) == 3
    assert len(recording.records([1])) == 4


BAD_ARRAYS = [
    ({"err": None}, "no err; a recording has"),
    ({"top1": None, "final": None}, "no top1 and no final"),
    ({"err": np.zeros(4, np.float32)}, r"err is float32 \[4\], must be numbers"),
    ({"err": np.zeros((4, 2), "U3")}, "must be numbers"),
    ({"err": np.zeros((4, 2), bool)}, "must be numbers"),
    ({"err": np.zeros((0, 2), np.float32)}, "nothing to replay"),
    ({"err": np.zeros((4, 0), np.float32)}, "nothing to replay"),
    ({"err": np.full((4, 2), np.nan, np.float32)}, r"err\[0, 0\] is nan, must be within 0..1"),
    ({"err": np.full((4, 2), np.inf, np.float32)}, r"err\[0, 0\] is inf"),
    ({"err": np.full((4, 2), -0.1)}, r"err\[0, 0\] is -0.1"),
    ({"err": np.full((4, 2), 1.5)}, r"err\[0, 0\] is 1.5"),
    ({"top1": np.zeros((4, 2))}, r"top1 is float64 \[4, 2\], must be whole numbers \[N, R\]"),
    ({"top1": np.zeros((4, 3), int)}, r"top1 has shape \[4, 3\], err needs \[4, 2\]"),
    ({"top1": np.zeros((5, 2), int)}, r"top1 has shape \[5, 2\]"),
    ({"final": np.zeros((4, 1), int)}, r"final is int64 \[4, 1\], must be whole numbers \[N\]"),
    ({"final": np.zeros(3, int)}, r"final has shape \[3\], err needs \[4\]"),
    ({"final": np.full(4, 2**63, np.uint64)}, "too large"),
    ({"batch": np.array([1, 0, 1, 1])}, r"batch\[1\] is 0, must be at least 1"),
    ({"batch": np.ones(4)}, "batch is float64"),
    ({"batch": np.ones(3, int)}, r"batch has shape \[3\]"),
    ({"ramps": np.array([1, 1])}, "ramps are .* must be 2 rising"),
    ({"ramps": np.array([1])}, "must be 2 rising"),
    ({"ramps": np.array([-1, 1])}, "must be 2 rising"),
    ({"catalog": np.array("{}")}, "catalog: catalog has no batch_sizes"),
    ({"catalog": np.array("[" * 100_000)}, "catalog: is no catalog"),
    ({"catalog": np.array(3)}, "must be one text"),
]


@pytest.mark.parametrize(("changed", "told"), BAD_ARRAYS)
def test_arrays_that_are_no_recording_are_named_with_value_and_limit(changed, told):
    with pytest.raises(InvalidRecording, match=told):
        recording_of(arrays(**changed))


def a_file(**changed):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays(200, 12, **changed))
    return buffer.getvalue()


def array_file():
    buffer = io.BytesIO()
    np.save(buffer, np.zeros((4, 2)))
    return buffer.getvalue()


BAD_FILES = {
    "empty": b"",
    "text": b"err,top1,final\n0.1,1,1\n",
    "one array": array_file(),
    "cut off": a_file()[:-400],
    "half": a_file()[:3000],
    "damaged": a_file()[:200] + b"\xff" * 900 + a_file()[1100:],
    "objects": a_file(err=np.array([[{}]], object)),
    "Parquet cut off": b"PAR1 and no more",
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_files_that_are_no_recording_are_told_in_one_line(tmp_path, name):
    path = tmp_path / "run.npz"
    path.write_bytes(BAD_FILES[name])
    with pytest.raises(InvalidRecording) as told:
        read_recording(path)
    assert str(told.value).startswith(str(path))
    assert "\n" not in str(told.value)


def test_a_file_that_claims_more_than_memory_is_refused(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999), }"
    npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    import zipfile

    with zipfile.ZipFile(tmp_path / "run.npz", "w") as file:
        file.writestr("err.npy", npy)
    with pytest.raises(InvalidRecording):
        read_recording(tmp_path / "run.npz")


def test_rows_of_different_length_in_parquet_are_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"err": [[0.1, 0.2], [0.3]], "top1": [[1, 1], [1, 1]], "final": [1, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "run.parquet")
    with pytest.raises(InvalidRecording, match="rows of err are not lists of numbers of one length"):
        read_recording(tmp_path / "run.parquet")


def test_empty_cells_in_parquet_are_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"err": [[0.1], [0.3]], "top1": [[1], [1]], "final": [1, None]})
    pyarrow.parquet.write_table(table, tmp_path / "run.parquet")
    with pytest.raises(InvalidRecording, match="final has 1 empty values"):
        read_recording(tmp_path / "run.parquet")


def test_a_path_without_a_file_is_told(tmp_path):
    with pytest.raises(InvalidRecording, match="does not exist"):
        read_recording(tmp_path / "none.npz")
    with pytest.raises(InvalidRecording, match="is not a file"):
        read_recording(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "\x00",
        '{"batch_sizes": [1], "T": [[NaN]], "o": [[0]], "full": [1]}',
        '{"batch_sizes": [1e999], "T": [[1]], "o": [[0]], "full": [1]}',
        '{"batch_sizes": [1], "T": {}, "o": [[0]], "full": [1]}',
        '{"batch_sizes": [1], "T": [[1]], "o": [[0]], "full": [2], "layers": 5}',
        '{"batch_sizes": 1, "T": [[1]], "o": [[0]], "full": [2]}',
    ],
)
def test_a_file_that_is_no_catalog_is_named(tmp_path, text):
    path = tmp_path / "catalog.json"
    path.write_text(text)
    with pytest.raises(InvalidCatalog, match=r"catalog\.json"):
        read_catalog(path)
