"""Tensors of every datatype are read; every wrong one is refused by name."""

import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate_worker.errors import InvalidRequest
from apparate_worker.protocol.tensors import DTYPES, from_json, from_raw, from_values


@pytest.mark.parametrize("datatype", DTYPES)
def test_raw_data_of_every_datatype_comes_back(datatype):
    sent = np.array([[0, 1, 1], [1, 0, 1]]).astype(DTYPES[datatype])
    got = from_raw("x", datatype, [2, 3], sent.tobytes())
    np.testing.assert_array_equal(got, sent)
    assert got.dtype == DTYPES[datatype]


@pytest.mark.parametrize("datatype", [d for d in DTYPES if d != "BF16"])
@pytest.mark.parametrize("flat", [True, False])
def test_json_data_of_every_datatype_is_read_nested_or_flat(datatype, flat):
    sent = np.array([[0, 1, 1], [1, 0, 1]]).astype(DTYPES[datatype])
    got = from_json("x", datatype, [2, 3], (sent.ravel() if flat else sent).tolist())
    np.testing.assert_array_equal(got, sent)
    assert got.dtype == DTYPES[datatype]


@pytest.mark.parametrize("shape", [[0, 2**62], [2**63, 0], [2**40, 2**40, 0], [2**40, 2**40]])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BOOL"])
def test_a_shape_that_overflows_is_refused_also_when_it_has_no_elements(shape, datatype):
    for read, data in ((from_raw, b""), (from_json, []), (from_values, [])):
        with pytest.raises(InvalidRequest, match="larger than any tensor"):
            read("x", datatype, shape, data)


def test_bytes_become_rows_of_uint8_filled_up_with_zero():
    raw = b"".join(struct.pack("<I", len(b)) + b for b in (b"ab", b"", b"xyz"))
    wanted = [[97, 98, 0], [0, 0, 0], [120, 121, 122]]
    assert from_raw("s", "BYTES", [3], raw).tolist() == wanted
    assert from_json("s", "BYTES", [3], ["ab", "", "xyz"]).tolist() == wanted
    assert from_json("s", "BYTES", [3, 1], [["ab"], [""], ["xyz"]]).tolist() == [[row] for row in wanted]
    assert from_values("s", "BYTES", [3], [b"ab", b"", b"xyz"]).tolist() == wanted


def test_numbers_that_are_not_finite_come_through_as_raw_data():
    got = from_raw("x", "FP32", [2], np.array([np.nan, np.inf], np.float32).tobytes())
    assert np.isnan(got[0]) and np.isinf(got[1])


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "words"),
    [
        ("FP32", [-1], [1.0], "size -1, must be a number from 0"),
        ("FP32", [2**62, 2**62], [1.0], "larger than any tensor"),
        ("FP32", [1.0], [1.0], "size 1.0"),
        ("FP32", [True], [1.0], "size True"),
        ("FP32", "4", [1.0], "must be a list"),
        ("FP32", [1] * 17, [1.0], "at most 16"),
        ("FP32", [2], [1.0], "data has shape"),
        ("FP32", [2, 2], [[1.0, 2.0, 3.0, 4.0]], "data has shape"),
        ("FP32", [2, 2], [[1.0], [2.0, 3.0]], "not an even table"),
        ("FP32", [1], ["1"], "no FP32"),
        ("FP32", [1], [None], "no FP32"),
        ("FP32", [1], [{}], "no FP32"),
        ("FP32", [1], [True], "no FP32"),
        ("FP32", [1], None, "data must be a list"),
        ("FP32", [1], "x", "data must be a list"),
        ("INT32", [1], [1.5], "no INT32"),
        ("INT32", [1], [2**31], "2147483648 is not within INT32"),
        ("UINT8", [1], [-1], "-1 is not within UINT8"),
        ("INT64", [1], [2**63], "is not within INT64"),
        ("UINT64", [2], [2**64, 1], "UINT64"),
        ("BOOL", [1], [1], "no BOOL"),
        ("BF16", [1], [1.0], "BF16 has no JSON form"),
        ("BYTES", [1], [1], "must be strings"),
        ("BYTES", [2], ["a"], "has 1 elements, its shape has 2"),
        ("FLOAT", [1], [1.0], "datatype 'FLOAT' is not known; there are: BOOL"),
        (7, [1], [1.0], "datatype 7 is not known"),
    ],
)
def test_wrong_json_is_refused_by_name(datatype, shape, data, words):
    with pytest.raises(InvalidRequest, match=words):
        from_json("x", datatype, shape, data)


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "words"),
    [
        ("FP32", [2], b"1234", r"4 bytes of data, FP32 \[2\] takes 8"),
        ("FP32", [2**62, 4], b"1234", "larger than any tensor"),
        ("FP32", [-2], b"", "-2"),
        ("BYTES", [1], b"\x05\0\0\0ab", "element 0 says 5 bytes, 2 are left"),
        ("BYTES", [2], b"\x01\0\0\0a", "exactly the 2 elements"),
        ("BYTES", [1], b"\x01\0\0\0ab", "element 1 says"),
        ("BYTES", [1], b"\xff\xff\xff\xff", "says 4294967295 bytes"),
        ("NONE", [1], b"", "not known"),
    ],
)
def test_wrong_raw_data_is_refused_by_name(datatype, shape, data, words):
    with pytest.raises(InvalidRequest, match=words):
        from_raw("x", datatype, shape, data)


def test_one_long_element_among_many_short_ones_cannot_fill_the_memory():
    with pytest.raises(InvalidRequest, match="differ too much in length"):
        from_values("s", "BYTES", [10_000], [b"x" * 100_000, *[b""] * 9_999])


def test_large_integers_keep_every_bit():
    assert from_json("x", "UINT64", [2], [2**64 - 1, 1]).tolist() == [2**64 - 1, 1]
    assert from_json("x", "INT64", [2], [-(2**63), 2**63 - 1]).tolist() == [-(2**63), 2**63 - 1]


@given(
    st.sampled_from([*DTYPES, "BYTES", "?"]),
    st.lists(st.integers(-2, 2**64) | st.none() | st.floats(), max_size=4),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3), st.lists, max_leaves=8),
)
def test_no_json_does_more_than_an_invalid_request(datatype, shape, data):
    try:
        from_json("x", datatype, shape, data)
    except InvalidRequest as error:
        assert str(error).startswith("input 'x'")


@given(st.sampled_from([*DTYPES, "BYTES"]), st.lists(st.integers(-1, 4), max_size=3), st.binary(max_size=40))
def test_no_bytes_do_more_than_an_invalid_request(datatype, shape, data):
    try:
        from_raw("x", datatype, shape, data)
    except InvalidRequest as error:
        assert str(error).startswith("input 'x'")


def test_bfloat16_is_a_type_of_its_own():
    assert from_raw("x", "BF16", [1], np.array([1.5], ml_dtypes.bfloat16).tobytes()).tolist() == [1.5]
