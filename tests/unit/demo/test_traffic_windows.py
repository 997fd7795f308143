"""What the load generator tells of its requests."""

from __future__ import annotations

import pytest

from apparate_demo.traffic.windows import WINDOW, Ledger, Result


def a_result(at: float = 0.0, **fields: object) -> Result:
    return Result(**{"protocol": "http", "sent": at, "done": at + 0.002, "label": 1, "agrees": True, **fields})


def lines(results: list[Result], now: float = float("inf")) -> list[dict]:
    ledger = Ledger(late_s=1.0)
    for one in results:
        ledger.take(one)
    return list(ledger.due(now))


def test_a_second_has_its_answers_failures_and_median():
    found = lines([a_result(5.1), a_result(5.9, exit_ramp=2, revision=7), a_result(5.5, label=-1, error="HTTP 503")])
    second = next(one for one in found if one["kind"] == "second")
    assert second | {"p50_ms": 2.0} == {
        "kind": "second",
        "at": 5,
        "protocol": "http",
        "answered": 2,
        "failed": 1,
        "early": 1,
        "revision": 7,
        "p50_ms": 2.0,
    }
    assert second["p50_ms"] == pytest.approx(2.0, abs=0.01)


def test_a_second_is_told_once_its_late_answers_had_their_time():
    assert [one["at"] for one in lines([a_result(5.1), a_result(6.1)], now=7.5)] == [5]


def test_each_protocol_has_its_own_seconds():
    found = lines([a_result(5.1), a_result(5.2, protocol="grpc")])
    assert sorted(one["protocol"] for one in found) == ["grpc", "http"]


def test_a_window_is_told_when_a_thousand_answers_are_there_and_not_before():
    few = [a_result(i / 100) for i in range(WINDOW - 1)]
    assert not [one for one in lines(few) if one["kind"] == "window"]
    whole = [one for one in lines([*few, a_result(20, agrees=False)]) if one["kind"] == "window"]
    assert [(one["answers"], one["agreement"]) for one in whole] == [(WINDOW, 0.999)]


def test_a_request_without_an_answer_is_a_failure_and_in_no_window():
    results = [a_result(i / 100) for i in range(WINDOW)] + [a_result(3, label=-1, error="gone")]
    found = lines(results)
    assert [one["error"] for one in found if one["kind"] == "failure"] == ["gone"]
    assert [one["agreement"] for one in found if one["kind"] == "window"] == [1.0]
