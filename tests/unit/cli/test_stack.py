"""Which ports the workers of local mode get."""

from __future__ import annotations

from apparate.cli.children import Child
from apparate.cli.logs import LogWriter
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


def test_the_last_words_of_a_child_are_its_event_and_its_error() -> None:
    child = Child("worker m-0", (), {}, LogWriter())
    child._said.append('{"event": "the worker cannot start", "error": "there is\\nno model", "level": "error"}')
    child._said.append('{"event": "bye", "level": "info"}')
    assert child.last_words() == "the worker cannot start: no model"
