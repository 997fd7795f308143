"""How long a request may take, and which class it is of: parameters `timeout` and `priority`, as Triton has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from apparate_worker.admission import class_of
from apparate_worker.errors import InvalidRequest
from apparate_worker.protocol.exits import DEADLINE

TIMEOUT, PRIORITY = "timeout", "priority"


def read_limit(
    parameters: Mapping[str, Any], deadline_s: float | None, objective_s: float | None
) -> tuple[float | None, str]:
    """(seconds from its arrival, in words for people): the shortest of the request's limits and the model's objective.

    deadline_s: its `exit.deadline_ms`. None: there is no limit. Raises InvalidRequest.
    """
    limit_s, words = objective_s, "" if objective_s is None else f"the model's objective of {objective_s * 1e3:g} ms"
    if deadline_s is not None and (limit_s is None or deadline_s < limit_s):
        limit_s, words = deadline_s, f"the request's {DEADLINE} of {deadline_s * 1e3:g}"
    timeout_us = _whole(parameters, TIMEOUT, 10**15, "microseconds from 0")
    if timeout_us and (limit_s is None or timeout_us / 1e6 < limit_s):  # 0 is no limit, as in Triton
        limit_s, words = timeout_us / 1e6, f"the request's timeout of {timeout_us} microseconds"
    return limit_s, words


def read_priority(parameters: Mapping[str, Any], default: int) -> int:
    """The class of a request; priority 0, or none, is the default. Raises InvalidRequest."""
    return class_of(_whole(parameters, PRIORITY, 2**32 - 1, "from 0 (the default), 1 (high) or more (low)") or default)


def _whole(parameters: Mapping[str, Any], name: str, most: int, words: str) -> int:
    value = parameters.get(name)
    if value is None:
        return 0
    if isinstance(value, str) and value.isdecimal() and len(value) < 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidRequest(f"parameter {name} is {value!r:.40}, must be whole {words}")
    return value
