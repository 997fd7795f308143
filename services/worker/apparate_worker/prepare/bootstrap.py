"""Bootstrap data: an .npz with one array for each input, checked against what the document says of them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apparate.contract.resource import TensorSpec
from apparate_worker.model.errors import InvalidBootstrap
from apparate_worker.model.sources import dtype_of

LEAST_RECORDS = 64  # fewer cannot train a ramp and check it too
BROKEN = (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, AttributeError, RuntimeError)
"""What reading a damaged or foreign file raises; RuntimeError: encrypted, or packed by an unknown method."""
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class BootstrapData:
    """Unlabelled inputs, one array [N, ...] for each, by name; `mask` is the index of the one that masks padding."""

    arrays: Mapping[str, Array]
    specs: tuple[TensorSpec, ...]
    mask: int | None

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def take(self, rows: Sequence[int] | npt.NDArray[np.integer[Any]], device: torch.device) -> dict[str, Tensor]:
        """The inputs of some rows, without the padding that none of them needs."""
        found = {name: array[rows] for name, array in self.arrays.items()}
        if self.mask is not None:
            length = max(int(_lengths(found[self.specs[self.mask].name]).max(initial=1)), 1)
            varies = {spec.name for spec in self.specs if spec.shape[:1] == (-1,)}
            found = {name: array[:, :length] if name in varies else array for name, array in found.items()}
        return {name: torch.from_numpy(np.ascontiguousarray(array)).to(device) for name, array in found.items()}

    def batches(self, size: int) -> Iterator[npt.NDArray[np.int64]]:
        """Rows in batches of one size; items of like length together, so that little of a batch is padding."""
        rows = np.arange(len(self))
        if self.mask is not None:
            rows = np.argsort(_lengths(self.arrays[self.specs[self.mask].name]), kind="stable")
        for begin in range(0, len(rows), size):
            yield rows[begin : begin + size]

    def typical(self, size: int) -> npt.NDArray[np.int64]:
        """Rows of a batch that is as long as the middle one of several random batches, and the same every time."""
        draws: npt.NDArray[np.int64] = np.random.default_rng(0).integers(0, len(self), (9, size))
        middle = 0
        if self.mask is not None:
            lengths = _lengths(self.arrays[self.specs[self.mask].name])
            middle = int(np.argsort(lengths[draws].max(axis=1), kind="stable")[len(draws) // 2])
        rows: npt.NDArray[np.int64] = draws[middle]
        return rows

    def head(self, records: int) -> BootstrapData:
        """The first records of it."""
        return BootstrapData({name: array[:records] for name, array in self.arrays.items()}, self.specs, self.mask)


def _lengths(mask: Array) -> npt.NDArray[np.int64]:
    """[N] one past the last unmasked place."""
    places = np.arange(1, mask.shape[1] + 1)
    found: npt.NDArray[np.int64] = (places * (mask != 0)).max(axis=1, initial=0)
    return found


def load_bootstrap(path: Path, specs: Sequence[TensorSpec], max_records: int) -> BootstrapData:
    """The data for some inputs. Raises InvalidBootstrap that names the array and what is wrong with it."""
    try:
        with path.open("rb") as raw, zipfile.ZipFile(raw):  # numpy leaves a broken file open
            pass  # numpy would take a single array as well
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            missing = [spec.name for spec in specs if spec.name not in file.files]
            if missing:
                raise InvalidBootstrap(f"{path} has no array {', '.join(missing)}; it has {', '.join(file.files)}")
            arrays = {spec.name: file[spec.name] for spec in specs}
    except FileNotFoundError:
        raise InvalidBootstrap(f"bootstrap data {path} does not exist") from None
    except InvalidBootstrap:
        raise
    except BROKEN as error:
        raise InvalidBootstrap(f"bootstrap data {path} is not an .npz of plain arrays: {error}") from error
    for spec in specs:
        _check(path, spec, arrays[spec.name])
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise InvalidBootstrap(f"{path}: arrays differ in length: {counts}")
    records = next(iter(counts.values()))
    if records < LEAST_RECORDS:
        raise InvalidBootstrap(f"{path} has {records} records, at least {LEAST_RECORDS} are needed to train ramps")
    arrays = {name: _spread(array, max_records) for name, array in arrays.items()}
    return BootstrapData(arrays, tuple(specs), find_mask(specs, arrays))


def _spread(array: Array, most: int) -> Array:
    """At most so many records, evenly over the whole."""
    return array if len(array) <= most else array[np.linspace(0, len(array) - 1, most).astype(np.int64)]


def _check(path: Path, spec: TensorSpec, array: Array) -> None:
    if spec.datatype == "BF16":
        raise InvalidBootstrap(f"input {spec.name} is BF16, which an .npz cannot hold")
    wanted = str(torch.zeros(0, dtype=dtype_of(spec)).numpy().dtype)
    if str(array.dtype) != wanted:
        raise InvalidBootstrap(f"{path}: array {spec.name} is {array.dtype}, expected {wanted} ({spec.datatype})")
    fits = len(array.shape) == len(spec.shape) + 1
    fits = fits and all(want in (-1, have) for want, have in zip(spec.shape, array.shape[1:], strict=True))
    if not fits:
        shape = ["N", *spec.shape]
        raise InvalidBootstrap(f"{path}: array {spec.name} has shape {list(array.shape)}, expected {shape}")
    long = [n for want, n in zip(spec.shape, array.shape[1:], strict=True) if want == -1 and n > spec.max_size]
    if long:
        raise InvalidBootstrap(f"{path}: array {spec.name} is {long[0]} long, input {spec.name} allows {spec.max_size}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(axis=1))[0])
        raise InvalidBootstrap(f"{path}: array {spec.name} is not finite in record {bad}")


def find_mask(specs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> int | None:
    """Which input says what is padding: called a mask, of zeros and ones, and as long as the first input."""
    for i, spec in enumerate(specs[1:], 1):
        like_first = spec.shape[:1] == specs[0].shape[:1] and len(spec.shape) == 1
        if like_first and "mask" in spec.name.lower() and np.isin(arrays[spec.name], (0, 1)).all():
            return i
    return None
