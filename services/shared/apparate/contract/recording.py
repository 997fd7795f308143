"""Recordings: feedback of a served model as a file, `.npz` or Parquet, as in docs/reference/recordings.md."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate.catalog import InvalidCatalog, RampCatalog
from apparate.feedback import Records

REQUIRED = ("err", "top1", "final")
OPTIONAL = ("batch", "ramps", "catalog")
NOT_REPORTED = -1  # as top1, with an error that is not a number: the ramp was switched off for this request

Arrays = Mapping[str, npt.NDArray[Any]]


class InvalidRecording(ValueError):
    """A file that is no recording; the message names the file, the array, the value and the limit."""


@dataclass(frozen=True, eq=False)
class Recording:
    """Feedback of N requests in order of service over R ramps.

    err [N, R] float32 · top1 [N, R] the ramps' answers · final [N] the model's · batch [N] padded batch sizes
    """

    err: npt.NDArray[np.float32]
    top1: npt.NDArray[np.int64]
    final: npt.NDArray[np.int64]
    batch: npt.NDArray[np.int64]
    ramps: tuple[int, ...] | None = None
    """Catalog indices of the columns, where the file has them."""
    catalog: RampCatalog | None = None
    """The catalog of the columns, where the file has it."""

    def __len__(self) -> int:
        return len(self.final)

    def records(self, columns: Sequence[int]) -> Records:
        """What tuning reads: the requests that all of the chosen columns reported on."""
        chosen = list(columns)
        known = ~np.isnan(self.err[:, chosen]).any(axis=1)
        agree = self.top1[:, chosen] == self.final[:, None]
        return Records(self.err[:, chosen][known], agree[known], self.batch[known])


def read_recording(path: Path) -> Recording:
    """The recording in a `.npz` or Parquet file. Raises InvalidRecording for anything else, never runs its content."""
    if not path.is_file():
        raise InvalidRecording(f"{path} is not a file" if path.exists() else f"{path} does not exist")
    with path.open("rb") as file:
        parquet = file.read(4) == b"PAR1"
    try:
        arrays = _read_parquet(path) if parquet else _read_npz(path)
        return recording_of(arrays)
    except InvalidRecording as error:
        raise InvalidRecording(f"{path}: {error}") from None


def recording_of(arrays: Arrays) -> Recording:
    """A recording from its arrays. Raises InvalidRecording that names the array, the value and the limit."""
    missing = [name for name in REQUIRED if name not in arrays]
    if missing:
        raise InvalidRecording(f"no {' and no '.join(missing)}; a recording has {', '.join(REQUIRED)} and maybe batch")
    err, top1 = np.asarray(arrays["err"]), _whole(arrays, "top1", dimensions=2)
    if err.ndim != 2 or err.dtype.kind not in "fiu":
        raise InvalidRecording(f"err is {_shape(err)}, must be numbers [N, R]")
    if not err.size:
        raise InvalidRecording(f"err is {_shape(err)}: there is nothing to replay")
    _same_shape("top1", top1, err.shape)
    _check_errors(err, top1)
    final = _whole(arrays, "final", dimensions=1)
    _same_shape("final", final, err.shape[:1])
    batch = _whole(arrays, "batch", dimensions=1) if "batch" in arrays else np.ones(len(err), np.int64)
    _same_shape("batch", batch, err.shape[:1])
    if batch.min() < 1:
        at = int(batch.argmin())
        raise InvalidRecording(f"batch[{at}] is {batch[at]}, must be at least 1")
    ramps = _ramps(arrays, err.shape[1])
    catalog = _embedded_catalog(arrays)
    return Recording(err.astype(np.float32), top1, final, batch, ramps, catalog)


def write_recording(path: Path, recording: Recording) -> None:
    """Write a recording, as Parquet when the name ends so, else as `.npz`."""
    arrays: dict[str, Any] = {
        "err": recording.err, "top1": recording.top1, "final": recording.final, "batch": recording.batch
    }  # fmt: skip
    if path.suffix == ".parquet":
        arrow, parquet = _pyarrow()
        columns = {name: arrow.array(list(a) if a.ndim == 2 else a) for name, a in arrays.items()}
        parquet.write_table(arrow.table(columns), path)
        return
    if recording.ramps is not None:
        arrays["ramps"] = np.array(recording.ramps, np.int64)
    if recording.catalog is not None:
        arrays["catalog"] = np.array(json.dumps(recording.catalog.to_json()))
    with path.open("wb") as file:  # savez appends .npz to a name that has another ending
        np.savez_compressed(file, **arrays)


def read_catalog(path: Path) -> RampCatalog:
    """The catalog in a JSON file. Raises InvalidCatalog that names the file and what is wrong."""
    try:
        return _catalog(path.read_bytes())
    except OSError as error:
        raise InvalidCatalog(f"{path}: {error.strerror}") from None
    except InvalidCatalog as error:
        raise InvalidCatalog(f"{path}: {error}") from None


def _catalog(text: bytes | str) -> RampCatalog:
    try:
        return RampCatalog.from_json(json.loads(text))
    except InvalidCatalog:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidCatalog(f"is no catalog: {error}") from None


def _read_npz(path: Path) -> dict[str, npt.NDArray[Any]]:
    try:
        with zipfile.ZipFile(path):
            pass  # numpy would take a single array or a pickle as well
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in (*REQUIRED, *OPTIONAL) if name in file}
    except zipfile.BadZipFile:
        raise InvalidRecording("neither a whole .npz nor Parquet") from None
    except (OSError, ValueError, EOFError, KeyError, zlib.error, NotImplementedError, RuntimeError) as error:
        raise InvalidRecording(f"cannot be read: {_first_line(error)}") from None
    except MemoryError:
        raise InvalidRecording("an array is larger than memory") from None


def _read_parquet(path: Path) -> dict[str, npt.NDArray[Any]]:
    arrow, parquet = _pyarrow()
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise InvalidRecording(f"cannot be read: {_first_line(error)}") from None
    arrays = {}
    for name in (n for n in (*REQUIRED, "batch") if n in table.column_names):
        column = table[name]
        if column.null_count:
            raise InvalidRecording(f"{name} has {column.null_count} empty values")
        rows = column.to_numpy()
        if rows.dtype == object:  # a list in each row
            lengths = {len(row) if hasattr(row, "__len__") and not isinstance(row, str) else -1 for row in rows}
            if len(lengths) != 1 or lengths == {-1}:
                raise InvalidRecording(f"rows of {name} are not lists of numbers of one length")
            rows = np.stack([np.asarray(row) for row in rows])
        arrays[name] = rows
    return arrays


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise InvalidRecording(
            "Parquet needs the package pyarrow; run: pip install 'apparate[bench]', or use .npz"
        ) from None
    return pyarrow, pyarrow.parquet


def _check_errors(err: npt.NDArray[Any], top1: npt.NDArray[np.int64]) -> None:
    unreported = np.isnan(err) & (top1 == NOT_REPORTED)
    with np.errstate(invalid="ignore"):
        bad = ~((err >= 0) & (err <= 1)) & ~unreported
    if bad.any():
        row, ramp = np.argwhere(bad)[0]
        raise InvalidRecording(f"err[{row}, {ramp}] is {err[row, ramp]}, must be within 0..1")


def _whole(arrays: Arrays, name: str, *, dimensions: int) -> npt.NDArray[np.int64]:
    values = np.asarray(arrays[name])
    if values.ndim != dimensions or values.dtype.kind not in "iu":
        raise InvalidRecording(f"{name} is {_shape(values)}, must be whole numbers [{', '.join('NR'[:dimensions])}]")
    if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
        raise InvalidRecording(f"{name} has {values.max()}, too large for a signed 64-bit number")
    return values.astype(np.int64)


def _same_shape(name: str, values: npt.NDArray[Any], expected: tuple[int, ...]) -> None:
    if values.shape != expected:
        raise InvalidRecording(f"{name} has shape {list(values.shape)}, err needs {list(expected)}")


def _ramps(arrays: Arrays, columns: int) -> tuple[int, ...] | None:
    if "ramps" not in arrays:
        return None
    ramps = _whole(arrays, "ramps", dimensions=1)
    if len(ramps) != columns or (np.diff(ramps) <= 0).any() or ramps[0] < 0:
        raise InvalidRecording(f"ramps are {ramps.tolist()}, must be {columns} rising catalog indices")
    return tuple(int(r) for r in ramps)


def _embedded_catalog(arrays: Arrays) -> RampCatalog | None:
    if "catalog" not in arrays:
        return None
    text = np.asarray(arrays["catalog"])
    if text.dtype.kind not in "US" or text.ndim:
        raise InvalidRecording(f"catalog is {_shape(text)}, must be one text of JSON")
    try:
        return _catalog(text.item())
    except InvalidCatalog as error:
        raise InvalidRecording(f"catalog: {error}") from None


def _shape(values: npt.NDArray[Any]) -> str:
    return f"{values.dtype} {list(values.shape)}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
