"""When the plain model would have answered, by the profile."""

from __future__ import annotations

import numpy as np
import pytest

from apparate.catalog import RampCatalog
from apparate.feedback import FINAL
from apparate_worker.plain import PlainTimes, remaining_table

CATALOG = RampCatalog(
    batch_sizes=(1, 4),
    reach_ms=np.array([[1.0, 2.0, 3.0], [4.0, 8.0, 12.0]]),
    overhead_ms=np.array([[0.1, 0.2, 0.3], [0.4, 0.8, 1.2]]),
    full_ms=np.array([10.0, 40.0]),
)


@pytest.mark.parametrize(
    ("active", "rows", "later_ms"),
    [
        ((), 1, {FINAL: 0.0}),
        ((1,), 1, {1: 8.0 - 0.2, FINAL: -0.2}),
        ((0, 2), 4, {0: 36.0 - 0.4, 2: 28.0 - 1.6, FINAL: -1.6}),
        ((0,), 2, {0: 18.0 - 0.2, FINAL: -0.2}),  # between the profiled sizes
        ((0,), 8, {0: 72.0 - 0.8, FINAL: -0.8}),  # beyond them
    ],
)
def test_what_was_left_of_the_pass_less_the_ramps_that_were_passed(
    active: tuple[int, ...], rows: int, later_ms: dict[int, float]
) -> None:
    found = PlainTimes(CATALOG, 8).later_s(active, rows)
    assert {ramp: pytest.approx(ms / 1e3) for ramp, ms in later_ms.items()} == dict(found)


def test_another_plan_is_worked_out_anew() -> None:
    times = PlainTimes(CATALOG, 8)
    assert times.later_s((0,), 1)[FINAL] == pytest.approx(-0.1e-3)
    assert times.later_s((0, 1), 1)[FINAL] == pytest.approx(-0.3e-3)


def test_a_catalog_without_ramps_has_nothing_left_anywhere() -> None:
    bare = RampCatalog((1,), np.zeros((1, 0)), np.zeros((1, 0)), np.array([10.0]))
    assert remaining_table(bare, 4).shape == (5, 0)
    assert PlainTimes(bare, 4).later_s((), 3) == {FINAL: 0.0}
