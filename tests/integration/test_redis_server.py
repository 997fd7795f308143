"""The embedded redis-server: answers, keeps to loopback, comes back on its port, never outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
import redis

from apparate.service.redis_server import EmbeddedRedis, NoRedisServer
from support.eventually import eventually
from support.processes import a_process, is_alive
from support.redis import RedisServer, a_redis_server

pytestmark = pytest.mark.redis


def test_it_answers_clients_that_have_its_url(redis_server: str) -> None:
    with redis.Redis.from_url(redis_server) as client:
        assert client.ping()


def test_it_refuses_clients_without_its_password(own_redis: RedisServer) -> None:
    with (
        redis.Redis(port=own_redis.port, retry=None) as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.ping()


def test_it_evicts_nothing(redis_server: str) -> None:
    with redis.Redis.from_url(redis_server) as client:
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}


def test_it_comes_back_on_the_same_url_after_a_crash(own_redis: RedisServer) -> None:
    before = own_redis.url
    own_redis.restart()
    assert own_redis.url == before
    with redis.Redis.from_url(before) as client:
        assert client.ping()


def test_it_keeps_data_over_a_crash_when_asked() -> None:
    with a_redis_server(persist=True) as server, redis.Redis.from_url(server.url) as client:
        client.set("kept", "yes")
        server.restart()
        assert client.get("kept") == b"yes"


def test_a_taken_port_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(NoRedisServer, match=str(port)):
            EmbeddedRedis(port=port).start()


def test_it_dies_with_a_parent_that_crashes() -> None:
    code = (
        "from apparate.service.redis_server import EmbeddedRedis\nimport time\n"
        "print(EmbeddedRedis().start().pid, flush=True)\ntime.sleep(60)"
    )
    with a_process([sys.executable, "-c", code]) as parent:
        pid = int(eventually(lambda: parent.out and parent.out[0], within=20))
        assert is_alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
        eventually(lambda: not is_alive(pid))


def test_the_folder_of_a_killed_parent_is_removed_at_the_next_start_and_one_in_use_is_not() -> None:
    code = (
        "from apparate.service.redis_server import EmbeddedRedis\nimport time\n"
        "server = EmbeddedRedis().start()\nprint(server._folder.path, flush=True)\ntime.sleep(60)"
    )
    command = [sys.executable, "-c", code]
    with a_process(command) as living, a_process(command) as killed:
        used, left = (Path(eventually(lambda one=one: one.out and one.out[0], within=20)) for one in (living, killed))
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        assert used.is_dir() and left.is_dir()
        with a_redis_server():
            assert used.is_dir() and not left.exists()
