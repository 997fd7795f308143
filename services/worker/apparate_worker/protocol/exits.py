"""What a request may ask for about its own early exit. It can only be stricter than the plan, never looser.

`exit.mode`            default: as the plan says; off: the model's own answer
`exit.max_ramp`        the deepest ramp it may leave at; later it takes the model's own answer
`exit.min_confidence`  it leaves only where 1 - error score is at least this
`exit.deadline_ms`     it wants its answer within so many milliseconds of its arrival, else 504
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from apparate.contract.serving import ExitParameter
from apparate_worker.errors import InvalidRequest
from apparate_worker.release import NO_LIMITS, Limits

PREFIX = "exit."
MODE, MAX_RAMP, MIN_CONFIDENCE, DEADLINE = "exit.mode", "exit.max_ramp", "exit.min_confidence", "exit.deadline_ms"
PARAMETERS: tuple[str, ...] = get_args(ExitParameter)
MODES = ("default", "off")
MAX_DEADLINE_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for."""

    limits: Limits | None = None
    deadline_s: float | None = None
    """From its arrival."""


NOTHING = Asked()


def read_exits(parameters: Mapping[str, Any], allowed: Collection[str], ramps: int) -> Asked:
    """What a request's parameters ask for. Raises InvalidRequest, which names the parameter and what is allowed."""
    asked = [name for name in parameters if name.startswith(PREFIX)]
    if not asked:
        return NOTHING
    for name in asked:
        if name not in PARAMETERS:
            raise InvalidRequest(f"parameter {name:.80} is not known; there are: {', '.join(PARAMETERS)}")
        if name not in allowed:
            may = ", ".join(allowed) or "none"
            raise InvalidRequest(f"parameter {name} is not for clients of this model; spec.serving.clientExits: {may}")
    last_ramp, most_error = NO_LIMITS
    if MAX_RAMP in parameters:
        last_ramp = _max_ramp(parameters[MAX_RAMP], ramps)
    if MIN_CONFIDENCE in parameters:
        most_error = 1.0 - _number(MIN_CONFIDENCE, parameters[MIN_CONFIDENCE], 0.0, 1.0)
    if _mode(parameters.get(MODE, "default")) == "off":
        last_ramp = -1
    limits = Limits(last_ramp, most_error)
    deadline_ms = parameters.get(DEADLINE)
    return Asked(
        None if limits == NO_LIMITS else limits,
        None if deadline_ms is None else _number(DEADLINE, deadline_ms, 0.001, MAX_DEADLINE_MS) / 1e3,
    )


def _mode(value: Any) -> Any:
    if value not in MODES:
        raise InvalidRequest(f"parameter {MODE} is {value!r:.40}, must be one of: {', '.join(MODES)}")
    return value


def _max_ramp(value: Any, ramps: int) -> int:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if type(value) is not int or not 0 <= value < ramps:
        there = f"ramps 0..{ramps - 1}" if ramps else "no ramps"
        raise InvalidRequest(f"parameter {MAX_RAMP} is {value!r:.40}, this model has {there}")
    return value


def _number(name: str, given: Any, least: float, most: float) -> float:
    """A number, also as text: the standard's gRPC parameters have no floating point."""
    value = given
    if isinstance(value, str) and len(value) < 40:
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise InvalidRequest(f"parameter {name} is {given!r:.40}, must be a number within {least:g}..{most:g}")
    return float(value)
