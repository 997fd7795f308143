"""Which ports the workers of local mode get."""

from __future__ import annotations

from pathlib import Path

from apparate.cli.children import Child
from apparate.cli.logs import LogWriter
from apparate.cli.planning import Served, next_port, plan
from apparate.cli.ports import Ports
from apparate.cli.stack import LocalStack
from apparate.contract.document import parse_documents


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


def documents(*names: str, port: int = 8080, replicas: int = 1) -> list[Served]:
    text = "---\n".join(
        f"metadata: {{name: {name}}}\n"
        "spec:\n  model: {source: w, entrypoint: 'a.b:c'}\n  bootstrap: {data: d.npz}\n"
        f"  serving: {{replicas: {replicas}, protocols: {{http: {{port: {port}}}}}}}\n"
        for name in names
    )
    file = Path("model.yaml")
    return [Served(file, one) for one in parse_documents(text, origin="model.yaml", base=Path())]


def ports_of(served: list[Served], ports: Ports, workers: int | None = None) -> list[tuple[int, int]]:
    return [(one.http, one.grpc) for one in plan(served, ports, workers=workers, together=False)]


def test_ports_that_the_user_names_count_before_those_of_the_document() -> None:
    assert ports_of(documents("a", "b"), Ports(http=7000, grpc=0)) == [(7000, 0), (7001, 0)]
    assert ports_of(documents("a"), Ports(), workers=2) == [(8080, 9000), (8081, 9001)]


def test_no_worker_takes_the_port_that_the_user_named_for_the_controller() -> None:
    assert ports_of(documents("a"), Ports(controller=8080)) == [(8081, 9000)]


def test_the_controller_leaves_a_worker_the_port_that_its_document_names() -> None:
    stack = LocalStack(documents("a", port=8070), redis_url="redis://127.0.0.1:1/0")
    assert stack._make_controller().environ["EEM_CONTROLLER_PORT"] == "0"


def test_the_last_words_of_a_child_are_its_event_and_its_error() -> None:
    child = Child("worker m-0", (), {}, LogWriter())
    child._said.append('{"event": "the worker cannot start", "error": "there is\\nno model", "level": "error"}')
    child._said.append('{"event": "bye", "level": "info"}')
    assert child.last_words() == "the worker cannot start: no model"
