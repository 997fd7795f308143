"""The demo's client process against a real gRPC and HTTP server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from apparate_demo.client import Client, ClientError, Target
from apparate_demo.load import Slice
from support.oip_server import RAMP, REVISION, an_oip_server


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path: Path = tmp_path_factory.mktemp("traffic") / "traffic.npz"
    brightness = np.array([0, 255, 10, 200], np.uint8)
    np.savez(path, image=np.broadcast_to(brightness[:, None, None, None], (4, 8, 8, 3)))
    with Client(path) as client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with an_oip_server() as addresses:
        yield addresses


def a_slice(n: int = 40, seconds: float = 0.4) -> Slice:
    return Slice(0, seconds, np.linspace(0, seconds, n, endpoint=False), np.arange(n, dtype=np.int64) % 4)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_slice_comes_back_with_the_answer_to_every_request(client, server, protocol):
    outcome = client.run(Target(server[protocol], "m", protocol), a_slice())
    assert outcome.label.tolist() == [0, 1, 0, 1] * 10, outcome.error


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_answers_say_where_they_left_and_under_which_plan(client, server, protocol):
    outcome = client.run(Target(server[protocol], "m", protocol), a_slice())
    assert set(outcome.exit_ramp) == {RAMP} and set(outcome.revision) == {REVISION}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_requests_are_sent_no_sooner_than_scheduled_and_answered_afterwards(client, server, protocol):
    outcome = client.run(Target(server[protocol], "m", protocol), a_slice())
    assert (outcome.sent >= outcome.scheduled).all() and (outcome.done > outcome.sent).all()


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_server_that_is_gone_is_told_as_an_error(client, protocol):
    with pytest.raises(ClientError):
        client.run(Target("127.0.0.1:1", "m", protocol), a_slice(4, 0.1))


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_saturation_counts_answers_a_second(client, server, protocol):
    assert client.saturate(Target(server[protocol], "m", protocol), seconds=0.5, concurrency=4) > 0


def test_pings_are_timed_one_by_one(client, server):
    assert (client.ping(Target(server["grpc"], "m", "grpc"), 10) > 0).all()


def test_errors_are_no_throughput(client, server):
    with pytest.raises(ClientError, match="HTTP 500: broken"):
        client.saturate(Target(server["http"], "broken", "http"), seconds=0.2, concurrency=2)


def test_an_error_is_a_request_without_an_answer(client, server):
    outcome = client.run(Target(server["http"], "broken", "http"), a_slice(4, 0.1))
    assert not outcome.answered.any() and "HTTP 500: broken" in outcome.error
