"""Feedback and plans survive the wire; what is not theirs is refused by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate.contract.wire import WireError, decode_feedback, encode_feedback, plan_from_proto, plan_to_proto
from apparate.feedback import FeedbackBatch
from apparate.plan import Plan
from apparate_proto.v1 import feedback_pb2, plan_pb2


def a_batch(requests=3, ramps=(1, 4), seed=0, **other):
    rng = np.random.default_rng(seed)
    values = {
        "model": "default/person/local",
        "worker": "w1",
        "epoch": 1_790_000_000_000,
        "seq": 7,
        "revision": 3,
        "padded_size": max(requests, 1),
        "ramps": ramps,
        "errors": rng.random((requests, len(ramps)), np.float32),
        "labels": rng.integers(0, 5, (requests, len(ramps))),
        "final_labels": rng.integers(0, 5, requests),
        "exits": rng.choice([-1, *ramps], requests),
        "shadow": tuple(bool(i % 2) for i in range(len(ramps))),
        "catalog": "abcd",
        "started_at": 1.5,
        "service_ms": 2.5,
        "released_ms": rng.random(requests).astype(np.float32),
        "guarded": True,
    }
    return FeedbackBatch(**{**values, **other})


@given(st.integers(0, 9), st.sets(st.integers(0, 40), max_size=6), st.integers(0, 2**32 - 1))
def test_feedback_comes_back_as_it_went(requests, ramps, seed):
    sent = a_batch(requests, tuple(sorted(ramps)), seed)
    got = decode_feedback(encode_feedback(sent))
    for name in ("errors", "labels", "final_labels", "exits", "released_ms"):
        np.testing.assert_array_equal(getattr(got, name), getattr(sent, name))
    for name in ("model", "worker", "epoch", "seq", "revision", "padded_size", "ramps", "shadow", "catalog", "guarded"):
        assert getattr(got, name) == getattr(sent, name)


def test_an_error_score_that_is_no_number_is_sent_as_the_least_sure():
    sent = a_batch(1, (0,), errors=np.full((1, 1), np.nan, np.float32))
    assert decode_feedback(encode_feedback(sent)).errors.tolist() == [[1.0]]


def test_release_times_may_be_missing():
    sent = a_batch(released_ms=np.zeros(0, np.float32))
    assert len(decode_feedback(encode_feedback(sent)).released_ms) == 0


@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"hello world", b"\x0a\x05ab"])
def test_foreign_bytes_are_refused(data):
    with pytest.raises(WireError, match=r"not a feedback batch|bytes|padded"):
        decode_feedback(data)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("errors", b"\0" * 4, "errors has 4 bytes, expected 24"),
        ("errors", np.full((3, 2), 2, "<f4").tobytes(), r"outside 0\.\.1"),
        ("labels", b"", "labels has 0 bytes, expected 24"),
        ("exits", b"\0" * 5, "exits has 5 bytes, expected 12"),
        ("final_labels", b"\0" * 13, "final_labels has 13 bytes, expected 12"),
        ("released_ms", b"\0" * 8, "released_ms has 8 bytes, expected 12"),
        ("padded_size", 1, "padded size is 1"),
    ],
)
def test_a_message_whose_parts_disagree_names_the_part(field, value, words):
    message = feedback_pb2.FeedbackBatch.FromString(encode_feedback(a_batch()))
    setattr(message, field, value)
    with pytest.raises(WireError, match=words):
        decode_feedback(message.SerializeToString())


@pytest.mark.parametrize(("ramps", "words"), [([4, 1], "rising"), ([1], "shadow has 2 flags")])
def test_ramps_out_of_order_or_count_are_refused(ramps, words):
    message = feedback_pb2.FeedbackBatch.FromString(encode_feedback(a_batch()))
    message.ramps[:] = ramps
    with pytest.raises(WireError, match=words):
        decode_feedback(message.SerializeToString())


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_a_wire_error(data):
    try:
        decode_feedback(data)
    except WireError as error:
        assert str(error)


def test_a_plan_comes_back_with_float32_thresholds():
    plan = Plan.of(4, [1, 3], [0.1, 1.0], "abcd")
    assert plan_from_proto(plan_to_proto(plan)).same_settings(plan)


def test_a_plan_with_a_threshold_above_one_is_refused():
    message = plan_pb2.Plan(revision=1, ramps=[plan_pb2.RampSetting(ramp=0, threshold=1.5)])
    with pytest.raises(WireError, match=r"threshold of ramp 0 is 1\.5"):
        plan_from_proto(message)
