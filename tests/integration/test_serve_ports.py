"""`apparate serve` sees to its ports and its Redis before it prepares anything."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from apparate.cli.errors import CommandError
from apparate.cli.main import run
from apparate.cli.ports import HOST, Wanted, held, owner

NO_REDIS = ("--redis-url", "redis://127.0.0.1:1/0")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    """One that would be found wrong as soon as it is prepared: its files are not there."""
    found = tmp_path / "model.yaml"
    found.write_text("metadata: {name: m}\nspec: {model: {source: w, entrypoint: 'a.b:c'}, bootstrap: {data: d.npz}}\n")
    return found


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that this process listens on."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        found.listen()
        yield found.getsockname()[1]


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@pytest.mark.parametrize(
    ("flag", "what", "field"),
    [
        ("--http-port", "HTTP of worker m-0", " or spec.serving.protocols.http.port in {}"),
        ("--grpc-port", "gRPC of worker m-0", " or spec.serving.protocols.grpc.port in {}"),
        ("--controller-port", "HTTP of the controller", ""),
    ],
)
def test_a_port_that_somebody_has_is_told_before_anything_is_prepared(
    document: Path, listening: int, flag: str, what: str, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    others = {"--http-port": "0", "--grpc-port": "0", flag: str(listening)}
    assert run(["serve", "-f", str(document), *NO_REDIS, *(word for pair in others.items() for word in pair)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: port {listening} ({what}) is taken by pid {os.getpid()}: ")
    assert said.endswith(f"; {flag}{field.format(document)} names another\n") and said.count("\n") == 1


def test_with_ports_to_be_had_the_preparation_is_what_fails(document: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "-f", str(document), *NO_REDIS, "--http-port", "0", "--grpc-port", "0"]) == 2
    assert "preparing failed, see above" in capfd.readouterr().err


def test_ports_are_kept_from_others_while_they_are_held_and_free_afterwards() -> None:
    port = free_port()
    wanted = Wanted(port, "HTTP of worker m-0", "--http-port names another")
    with held([wanted]):
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do
            with pytest.raises(OSError, match="in use"):
                other.bind((HOST, port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, port))
    with held([wanted]):
        pass


def test_a_port_with_old_connections_that_are_not_quite_over_can_be_had() -> None:
    port = free_port()
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((HOST, port))
        server.listen()
        with socket.create_connection((HOST, port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # who closes first waits
            client.recv(1)
    with held([Wanted(port, "HTTP of worker m-0", "")]):
        pass


def test_a_port_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CommandError, match="is above 65535"), held([Wanted(65536, "HTTP of worker m-9", "")]):
        pass


def test_nobody_owns_a_port_that_nobody_listens_on() -> None:
    assert owner(free_port()) == ""


@pytest.mark.parametrize("url", ["localhost:6379", "http://127.0.0.1:6379"])
def test_an_address_that_is_no_redis_url_is_told_before_anything_is_prepared(
    document: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "-f", str(document), "--redis-url", url]) == 2
    assert capsys.readouterr().err.startswith("error: --redis-url: ")
