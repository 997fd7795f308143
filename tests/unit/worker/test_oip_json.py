"""HTTP bodies of the protocol, with and without binary tensor data."""

import json

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate.contract.resource import TensorSpec
from apparate_worker.errors import InvalidRequest
from apparate_worker.protocol.dataplane import InferResponse
from apparate_worker.protocol.oip_json import parse, parse_raw, read_index, render

JSON_X = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}


def body(*inputs, tail=b"", **other):
    header = json.dumps({"inputs": inputs or [JSON_X], **other}).encode()
    return header + tail, len(header)


def binary(name, values, size=None):
    data = values.tobytes()
    parameters = {"binary_data_size": len(data) if size is None else size}
    return {"name": name, "datatype": "FP32", "shape": list(values.shape), "parameters": parameters}, data


def test_plain_json_needs_no_header_length():
    parsed = parse(body(id="7")[0], None, "m", "1")
    assert (parsed.request.id, parsed.request.inputs["x"][1].tolist()) == ("7", [[1, 2]])


def test_binary_tensors_follow_the_header_in_order_and_may_stand_beside_json_ones():
    a, b = np.ones((1, 2), np.float32), np.full((1, 3), 5, np.float32)
    (one, first), (two, second) = binary("a", a), binary("b", b)
    parsed = parse(*body(one, JSON_X, two, tail=first + second), "m", "")
    assert {name: values.tolist() for name, (_, values) in parsed.request.inputs.items()} == {
        "a": a.tolist(),
        "x": [[1, 2]],
        "b": b.tolist(),
    }


def test_which_outputs_are_binary_is_asked_one_by_one_or_for_all():
    outputs = [{"name": "p", "parameters": {"binary_data": True}}, {"name": "q"}]
    assert parse(body(outputs=outputs)[0], None, "m", "").binary == {"p"}
    assert parse(body(outputs=outputs, parameters={"binary_data_output": True})[0], None, "m", "").binary == {"p", "q"}
    assert parse(body(parameters={"binary_data_output": True})[0], None, "m", "").binary is None
    assert parse(body()[0], None, "m", "").binary == frozenset()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "the request must be an object"),
        (b"{}", "inputs must be a list"),
        (b'{"inputs": 1}', "inputs must be a list"),
        (b'{"inputs": [1]}', "each of inputs must be an object"),
        (b'{"inputs": [{}]}', "name of an input"),
        (body({"name": "x"})[0], "datatype of input 'x'"),
        (body({**JSON_X, "shape": 4})[0], "shape of input 'x'"),
        (body(JSON_X, JSON_X)[0], "'x' is there twice"),
        (body(id=7)[0], "id must be a string"),
        (body(parameters=[])[0], "parameters must be an object"),
        (body(outputs={})[0], "outputs must be a list"),
        (body(outputs=[{"name": "p", "parameters": {"classification": -1}}])[0], "classification is -1"),
        (body(outputs=[{"name": "p", "parameters": {"classification": True}}])[0], "classification is True"),
        (body(outputs=[{"name": "p", "parameters": {"binary_data": 1}}])[0], "binary_data must be true or false"),
        (body(outputs=[{"name": "p", "parameters": {"shared_memory_region": "r"}}])[0], "shared memory"),
        (body(outputs=[{"name": "p"}, {"name": "p"}])[0], "output 'p' is there twice"),
        (body(parameters={"binary_data_output": "yes"})[0], "binary_data_output must be true or false"),
        (body(parameters={"x": [1]})[0], "parameters: 'x' is a list, must be a single value"),
        (body({**JSON_X, "parameters": {"x": {}}})[0], "parameters of input 'x': 'x' is an object"),
        (body({**JSON_X, "parameters": {"shared_memory_region": "r"}})[0], "shared memory is not supported"),
        (body({**JSON_X, "parameters": {"binary_data_size": 8}})[0], "binary_data_size is 8, 0 bytes are left"),
        (body({**JSON_X, "parameters": {"binary_data_size": -1}})[0], "binary_data_size is -1"),
        (body({**JSON_X, "parameters": {"binary_data_size": "8"}})[0], "binary_data_size is '8'"),
    ],
)
def test_a_wrong_request_is_refused_by_name(data, words):
    with pytest.raises(InvalidRequest, match=words):
        parse(data, None, "m", "")


def test_bytes_that_belong_to_no_tensor_are_refused():
    with pytest.raises(InvalidRequest, match="3 bytes follow"):
        parse(*body(tail=b"abc"), "m", "")


def test_a_header_longer_than_the_body_is_refused():
    with pytest.raises(InvalidRequest, match="is 99, the body has 2"):
        parse(b"{}", 99, "m", "")


@given(st.binary(max_size=60), st.none() | st.integers(-5, 70))
def test_no_bytes_do_more_than_an_invalid_request(data, length):
    with pytest.raises(InvalidRequest):
        parse(data, length, "m", "")


def an_answer():
    outputs = [("p", "FP32", np.ones((1, 2), np.float32)), ("label", "INT64", np.array([3]))]
    return InferResponse("m", "7", outputs, {"exit_ramp": 2})


def test_an_answer_in_json_has_flat_data():
    content, length = render(an_answer(), frozenset())
    assert length is None
    assert orjson.loads(content)["outputs"][0] == {"name": "p", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 1.0]}


def test_an_answer_may_mix_json_and_binary():
    content, length = render(an_answer(), frozenset({"p"}))
    header = orjson.loads(content[:length])
    assert (header["id"], header["parameters"]) == ("7", {"exit_ramp": 2})
    assert header["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert header["outputs"][1]["data"] == [3]
    assert np.frombuffer(content[length:], np.float32).tolist() == [1, 1]


def test_what_no_standard_knows_of_a_request_is_let_pass():
    inputs = {**JSON_X, "parameters": {"mine": "a"}, "other": [1]}
    parsed = parse(body(inputs, parameters={"mine": 1, "b": 1.5, "c": "d", "e": True}, other={})[0], None, "m", "")
    assert parsed.request.parameters == {"mine": 1, "b": 1.5, "c": "d", "e": True}


def test_how_many_classes_are_wanted_is_asked_output_by_output():
    outputs = [{"name": "p", "parameters": {"classification": 2}}, {"name": "q"}]
    request = parse(body(outputs=outputs)[0], None, "m", "").request
    assert (request.outputs, request.top) == (("p", "q"), {"p": 2})


def test_bytes_in_an_answer_are_text_in_json_and_have_their_length_before_them_in_binary():
    values = np.array([[b"a:1", "b:ü".encode()]], object)
    answer = InferResponse("m", "", [("p", "BYTES", values)], {})
    assert orjson.loads(render(answer, frozenset())[0])["outputs"] == [
        {"name": "p", "datatype": "BYTES", "shape": [1, 2], "data": ["a:1", "b:ü"]}
    ]
    content, length = render(answer, None)
    assert content[length:] == b"\3\0\0\0a:1\4\0\0\0b:\xc3\xbc"
    assert orjson.loads(content[:length])["outputs"][0]["parameters"] == {"binary_data_size": 15}


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "wanted"),
    [
        ("FP32", (2,), np.array([1, 2], np.float32).tobytes(), [[1, 2]]),
        ("INT16", (-1, 2), np.arange(6, dtype=np.int16).tobytes(), [[[0, 1], [2, 3], [4, 5]]]),
        ("UINT8", (-1,), b"", [[]]),
        ("BYTES", (1,), b"abc", [[[97, 98, 99]]]),
    ],
)
def test_a_body_without_json_is_one_item_of_the_only_input(datatype, shape, data, wanted):
    spec = TensorSpec(name="x", datatype=datatype, shape=shape)
    parsed = parse_raw(data, "m", "1", [spec])
    assert (parsed.request.inputs["x"][0], parsed.request.inputs["x"][1].tolist()) == (datatype, wanted)
    assert (parsed.request.model, parsed.request.version, parsed.binary) == ("m", "1", None)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ([(2,)], r"3 bytes of data, FP32 \[1, 2\] takes 8"),
        ([(-1, 2)], r"3 bytes of data, FP32 \[1, 0, 2\] takes 0"),
        ([(-1, -1)], "does not follow from 3 bytes"),
        ([(2,), (2,)], r"models with one input, this one takes \['x0', 'x1'\]"),
    ],
)
def test_a_body_without_json_that_does_not_fit_is_refused(shapes, words):
    specs = [TensorSpec(name=f"x{i}", datatype="FP32", shape=shape) for i, shape in enumerate(shapes)]
    with pytest.raises(InvalidRequest, match=words):
        parse_raw(b"abc", "m", "", specs)


@pytest.mark.parametrize(
    ("data", "ready"),
    [(b"", False), (b" \n", False), (b"{}", False), (b'{"ready": true}', True), (b'{"ready": null}', False)],
)
def test_the_index_may_be_asked_for_without_a_body(data, ready):
    assert read_index(data) is ready


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"ready": 1}'])
def test_a_wrong_request_for_the_index_is_refused(data):
    with pytest.raises(InvalidRequest):
        read_index(data)


NULLS = {"id": None, "parameters": None, "outputs": None}


@pytest.mark.parametrize("field", NULLS)
def test_an_optional_field_that_is_null_is_as_if_it_were_missing(field):
    given, without = (parse(body(**more)[0], None, "m", "") for more in ({field: None}, {}))
    assert (given.request.id, given.request.outputs, given.request.parameters, given.binary) == (
        without.request.id,
        without.request.outputs,
        without.request.parameters,
        without.binary,
    )


def test_optional_fields_of_tensors_may_be_null_too():
    nothing = {"binary_data_size": None, "shared_memory_region": None}
    outputs = [{"name": "p", "parameters": {"binary_data": None, "classification": None}}]
    inputs = [{**JSON_X, "parameters": None}, {**JSON_X, "name": "y", "parameters": nothing}]
    parameters = {"binary_data_output": True, "timeout": None}
    parsed = parse(body(*inputs, outputs=outputs, parameters=parameters)[0], None, "m", "")
    assert (list(parsed.request.inputs), parsed.binary) == (["x", "y"], {"p"})


@pytest.mark.parametrize("field", ["inputs"])
def test_a_field_that_must_be_there_may_not_be_null(field):
    with pytest.raises(InvalidRequest, match=f"{field} must be a list"):
        parse(json.dumps({field: None}).encode(), None, "m", "")
