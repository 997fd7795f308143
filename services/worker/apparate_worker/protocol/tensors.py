"""Tensors of the Open Inference Protocol as numpy arrays, and back. Every way a client can get one wrong is named.

A BYTES tensor that comes in becomes UINT8 with one more dimension, as long as its longest element and filled up with 0:
that is what a torch model can read. One that goes out is an array of bytes objects.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from apparate_worker.errors import InvalidRequest

Array = npt.NDArray[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
BYTES = "BYTES"
MAX_DIMENSIONS = 16
MAX_ROOM = 2**48  # elements; far more than a body holds, far less than overflows


def count(name: str, shape: Any) -> int:
    """Number of elements of a client's shape. Raises InvalidRequest for anything but a list of sizes from 0."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) > MAX_DIMENSIONS:
        raise InvalidRequest(f"input {name!r}: shape must be a list of at most {MAX_DIMENSIONS} sizes")
    room = 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise InvalidRequest(f"input {name!r}: shape {list(shape)} has the size {size!r}, must be a number from 0")
        room *= size or 1  # numpy wants room for the others also where one of them is 0
    if room > MAX_ROOM:
        raise InvalidRequest(f"input {name!r}: shape {list(shape)} is larger than any tensor")
    return math.prod(shape)


def from_raw(name: str, datatype: str, shape: Sequence[int], data: memoryview | bytes) -> Array:
    """An array over `data`, little-endian and row-major. Raises InvalidRequest unless its length fits the shape."""
    elements = count(name, shape)
    if datatype == BYTES:
        return padded(name, _length_prefixed(name, data, elements), shape)
    dtype = _dtype(name, datatype)
    if len(data) != elements * dtype.itemsize:
        raise InvalidRequest(
            f"input {name!r}: {len(data)} bytes of data, {datatype} {list(shape)} takes {elements * dtype.itemsize}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _length_prefixed(name: str, data: memoryview | bytes, elements: int) -> list[bytes]:
    found: list[bytes] = []
    at, end = 0, len(data)
    while at < end and len(found) <= elements:
        size = int.from_bytes(data[at : at + 4], "little")
        if at + 4 + size > end:
            raise InvalidRequest(
                f"input {name!r}: element {len(found)} says {size} bytes, {max(0, end - at - 4)} are left"
            )
        found.append(bytes(data[at + 4 : at + 4 + size]))
        at += 4 + size
    if len(found) != elements or at != end:
        raise InvalidRequest(f"input {name!r}: the data does not hold exactly the {elements} elements of its shape")
    return found


def from_json(name: str, datatype: str, shape: Sequence[int], data: Any) -> Array:
    """An array of JSON values, nested or flat. Raises InvalidRequest."""
    elements = count(name, shape)
    if not isinstance(data, list):
        raise InvalidRequest(f"input {name!r}: data must be a list")
    if datatype == BYTES:
        return padded(name, _texts(name, data, elements), shape)
    if datatype == "BF16":
        raise InvalidRequest(f"input {name!r}: BF16 has no JSON form, send it as binary data")
    dtype = _dtype(name, datatype)
    try:
        values = np.array(data)
        if values.dtype.kind == "f" and dtype.kind in "iu":
            values = np.array(data, dtype=object).reshape(-1)  # 64-bit integers that only look like floats to numpy
            values = np.array(values.tolist(), dtype) if all(type(v) is int for v in values) else np.array(data)
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequest(f"input {name!r}: data is not an even table of {datatype} numbers") from None
    if values.size != elements or (values.ndim > 1 and values.shape != tuple(shape)):
        raise InvalidRequest(f"input {name!r}: data has shape {list(values.shape)}, expected {list(shape)}")
    return _cast(name, datatype, values, dtype).reshape(shape)


def _cast(name: str, datatype: str, values: Array, dtype: np.dtype[Any]) -> Array:
    allowed = {"b": "b", "f": "iuf"}.get(dtype.kind, "iu")
    if values.size and values.dtype.kind not in allowed:
        raise InvalidRequest(f"input {name!r}: data holds values that are no {datatype}")
    if values.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        low, high = int(values.min()), int(values.max())
        if low < limits.min or high > limits.max:
            wrong = low if low < limits.min else high
            raise InvalidRequest(f"input {name!r}: {wrong} is not within {datatype}'s {limits.min}..{limits.max}")
    with np.errstate(over="ignore"):  # a number too large for FP16 is infinite, as in any conversion
        return values.astype(dtype)


def _texts(name: str, data: list[Any], elements: int) -> list[bytes]:
    flat: list[bytes] = []
    stack = [iter(data)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, str):
                flat.append(value.encode())
            elif isinstance(value, list) and len(stack) < MAX_DIMENSIONS:
                stack.append(iter(value))
                break
            else:
                raise InvalidRequest(f"input {name!r}: BYTES data holds {value!r:.40}, must be strings")
        else:
            stack.pop()
    if len(flat) != elements:
        raise InvalidRequest(f"input {name!r}: data has {len(flat)} elements, its shape has {elements}")
    return flat


def from_values(name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]) -> Array:
    """An array of a gRPC contents field. Raises InvalidRequest."""
    elements = count(name, shape)
    if len(values) != elements:
        raise InvalidRequest(f"input {name!r}: contents has {len(values)} values, {list(shape)} takes {elements}")
    if datatype == BYTES:
        return padded(name, list(values), shape)
    dtype = _dtype(name, datatype)
    wide = np.array(values) if len(values) else np.zeros(0, dtype)
    return _cast(name, datatype, wide, dtype).reshape(shape)


def to_raw(datatype: str, values: Array) -> bytes:
    """The bytes of a tensor; each BYTES element after its length in 4 bytes."""
    if datatype != BYTES:
        return values.tobytes()
    return b"".join(part for one in values.ravel() for part in (len(one).to_bytes(4, "little"), one))


def to_json(datatype: str, values: Array) -> Any:
    """The flat data of a tensor, as orjson writes it."""
    return [one.decode() for one in values.ravel()] if datatype == BYTES else values.ravel()


def padded(name: str, elements: Sequence[bytes], shape: Sequence[int]) -> Array:
    """BYTES elements as UINT8 [*shape, longest], filled up with 0.

    Raises InvalidRequest when that would be far larger than the data itself.
    """
    longest = max((len(one) for one in elements), default=0)
    total = sum(map(len, elements))
    if (
        len(elements) * longest > 16 * total + 2**20
    ):  # one long element among many would take memory by its length times their number
        raise InvalidRequest(f"input {name!r}: BYTES elements differ too much in length ({longest} bytes at most)")
    table = np.zeros((len(elements), longest), np.uint8)
    for row, one in zip(table, elements, strict=True):
        row[: len(one)] = np.frombuffer(one, np.uint8)
    return table.reshape(*shape, longest)


def _dtype(name: str, datatype: Any) -> np.dtype[Any]:
    found = DTYPES.get(datatype) if isinstance(datatype, str) else None
    if found is None:
        raise InvalidRequest(
            f"input {name!r}: datatype {datatype!r:.40} is not known; there are: {', '.join(DTYPES)}, BYTES"
        )
    return found
