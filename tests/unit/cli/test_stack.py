"""Which ports the workers of local mode get."""

from __future__ import annotations

from apparate.cli.stack import next_port


def test_workers_of_a_model_count_up_from_its_port() -> None:
    taken: set[int] = set()
    assert [next_port(8080, index, taken) for index in range(3)] == [8080, 8081, 8082]


def test_a_second_model_with_the_same_port_moves_up() -> None:
    taken: set[int] = set()
    first = [next_port(8080, index, taken) for index in range(2)]
    second = [next_port(8080, index, taken) for index in range(2)]
    assert (first, second) == ([8080, 8081], [8082, 8083])


def test_zero_stays_a_free_port() -> None:
    assert [next_port(0, index, set()) for index in range(2)] == [0, 0]
