"""Bounded waiting that fails with the last value seen.

The bounds are for a quiet machine. A busy one, which stands still for seconds, is no reason to fail: LEAST_S is waited
wherever less is asked for.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.01
LEAST_S = 30.0


class StillNot(AssertionError):
    """The wait is over and the value never became truthy."""


def eventually(fn: Callable[[], T], within: float = 5) -> T:
    """The first truthy value of `fn()`. An AssertionError inside `fn` counts as not yet; other errors are raised."""
    within = max(within, LEAST_S)
    deadline = time.monotonic() + within
    while True:
        try:
            value: T | AssertionError = fn()
        except AssertionError as error:
            value = error
        if value and not isinstance(value, AssertionError):
            return value
        if time.monotonic() >= deadline:
            raise StillNot(f"not true within {within} s; last value: {value!r}")
        time.sleep(PAUSE_S)


async def eventually_async(fn: Callable[[], T | Awaitable[T]], within: float = 5) -> T:
    """As `eventually`, without blocking the loop; `fn` may be a coroutine function."""
    within = max(within, LEAST_S)
    deadline = time.monotonic() + within
    while True:
        try:
            found = fn()
            value: T | AssertionError = await found if inspect.isawaitable(found) else found
        except AssertionError as error:
            value = error
        if value and not isinstance(value, AssertionError):
            return value
        if time.monotonic() >= deadline:
            raise StillNot(f"not true within {within} s; last value: {value!r}")
        await asyncio.sleep(PAUSE_S)
