"""What a request may ask for about its own early exit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate_worker.errors import InvalidRequest
from apparate_worker.protocol.exits import MAX_RAMP, MODE, NOTHING, PARAMETERS, read_exits
from apparate_worker.release import NO_LIMITS, Limits


def read(allowed=PARAMETERS, ramps=3, **given):
    return read_exits({f"exit.{name}": value for name, value in given.items()}, allowed, ramps)


def test_who_asks_for_nothing_gets_what_the_plan_says():
    assert read_exits({"timeout": 5, "mine": "x"}, PARAMETERS, 3) is NOTHING
    assert read(mode="default").limits is None


def test_mode_off_leaves_at_no_ramp_whatever_else_is_asked():
    assert read(mode="off").limits == Limits(-1, 1.0)
    assert read(mode="off", max_ramp=2).limits == Limits(-1, 1.0)


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        ({"max_ramp": 0}, Limits(0, 1.0)),
        ({"max_ramp": "2"}, Limits(2, 1.0)),
        ({"min_confidence": 0.75}, Limits(NO_LIMITS.last_ramp, 0.25)),
        ({"min_confidence": "0.75"}, Limits(NO_LIMITS.last_ramp, 0.25)),
        ({"min_confidence": 1}, Limits(NO_LIMITS.last_ramp, 0.0)),
        ({"max_ramp": 1, "min_confidence": 0.5}, Limits(1, 0.5)),
    ],
)
def test_limits_are_a_last_ramp_and_a_highest_error(asked, limits):
    assert read(**asked).limits == limits


def test_a_deadline_is_in_milliseconds_from_arrival():
    assert read(deadline_ms=250).deadline_s == 0.25
    assert read(deadline_ms="0.5").deadline_s == 0.0005


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"mode": "fast"}, "exit.mode is 'fast', must be one of: default, off"),
        ({"mode": 1}, "exit.mode is 1"),
        ({"max_ramp": 3}, r"exit.max_ramp is 3, this model has ramps 0\.\.2"),
        ({"max_ramp": -1}, "exit.max_ramp is -1"),
        ({"max_ramp": 1.0}, r"exit.max_ramp is 1\.0"),
        ({"max_ramp": True}, "exit.max_ramp is True"),
        ({"max_ramp": "layer4"}, "exit.max_ramp is 'layer4'"),
        ({"min_confidence": 1.5}, r"exit.min_confidence is 1\.5, must be a number within 0\.\.1"),
        ({"min_confidence": "nan"}, "exit.min_confidence is 'nan'"),
        ({"min_confidence": "much"}, "exit.min_confidence is 'much'"),
        ({"min_confidence": True}, "exit.min_confidence is True"),
        ({"deadline_ms": 0}, "exit.deadline_ms is 0"),
        ({"deadline_ms": 1e12}, "exit.deadline_ms is 1000000000000"),
        ({"threshold": 1}, "exit.threshold is not known; there are: exit.mode"),
    ],
)
def test_what_is_not_allowed_names_the_parameter_its_value_and_what_is(asked, words):
    with pytest.raises(InvalidRequest, match=words):
        read(**asked)


def test_a_model_without_ramps_has_none_to_name():
    with pytest.raises(InvalidRequest, match=r"exit.max_ramp is 0, this model has no ramps"):
        read(ramps=0, max_ramp=0)


def test_a_parameter_that_the_model_keeps_to_itself_is_refused_with_those_it_does_not():
    with pytest.raises(InvalidRequest, match=r"exit.mode is not for clients .*clientExits: exit.max_ramp"):
        read(allowed=(MAX_RAMP,), mode="off")
    with pytest.raises(InvalidRequest, match="clientExits: none"):
        read(allowed=(), mode="off")
    assert read(allowed=(MODE,), mode="off").limits == Limits(-1, 1.0)


VALUES = st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["off", "0.5", "1e400"])


@given(st.dictionaries(st.sampled_from(PARAMETERS), VALUES))
def test_no_value_does_more_than_an_invalid_request(parameters):
    try:
        found = read_exits(parameters, PARAMETERS, 3)
    except InvalidRequest as error:
        assert str(error).startswith("parameter exit.")
    else:
        limits = found.limits or NO_LIMITS
        assert -1 <= limits.last_ramp <= NO_LIMITS.last_ramp and 0 <= limits.most_error <= 1
