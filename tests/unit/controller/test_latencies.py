"""When answers came, and when the plain model would have given them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from apparate.feedback import FINAL
from apparate.plan import Plan
from apparate_controller.latencies import KEPT, Latencies
from support.control import CATALOG, a_batch

PLAN = Plan.of(1, [0, 2], [0.5, 0.5], CATALOG.digest)


def took(released: list[float], exits: list[int], *, times: int = 1) -> Latencies:
    found = Latencies()
    for _ in range(times):
        batch = a_batch(n=len(released))
        times_ms = np.array(released, np.float32)
        found.add(replace(batch, padded_size=len(released), released_ms=times_ms, exits=np.array(exits, np.int32)))
    return found


def test_nothing_is_told_before_the_first_answer() -> None:
    assert Latencies().distribution(CATALOG, PLAN)["samples"] == 0


@pytest.mark.parametrize(
    ("exit_ramp", "plain_ms"),
    [
        (0, 10 + 4.0 - 1.01),  # a pass takes 4 ms; ramp 0 is reached after 1 ms and costs 0.01 ms
        (2, 10 + 4.0 - 3.02),  # the ramp before it has been paid too
        (1, 10 + 4.0 - 2.0),  # of an earlier plan
        (FINAL, 10 - 0.02),  # both ramps were paid for nothing
    ],
)
def test_the_plain_model_answers_later_by_what_the_exit_spared(exit_ramp: int, plain_ms: float) -> None:
    found = took([10.0], [exit_ramp]).distribution(CATALOG, PLAN)
    assert (found["releasedMs"][50], found["plainMs"][50]) == (10.0, pytest.approx(plain_ms, abs=1e-3))


def test_only_the_newest_answers_count() -> None:
    found = took([5.0] * 8, [FINAL] * 8, times=KEPT // 8)
    found.add(replace(a_batch(n=4), padded_size=4, released_ms=np.full(4, 99, np.float32)))
    told = found.distribution(CATALOG, PLAN)
    assert (told["samples"], told["releasedMs"][0], told["releasedMs"][-1]) == (KEPT, 5.0, 99.0)


def test_quantiles_rise() -> None:
    told = took([3.0, 1.0, 2.0], [0, FINAL, 2]).distribution(CATALOG, PLAN)
    assert told["quantiles"] == sorted(told["quantiles"])
    assert told["releasedMs"] == sorted(told["releasedMs"])
