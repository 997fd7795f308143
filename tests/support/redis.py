"""A real redis-server for tests, with the ways it can die."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import redis

from apparate.service.redis_server import EmbeddedRedis


class RedisServer:
    """start / stop / kill9 / restart on one free loopback port. `persist` keeps data over a kill."""

    def __init__(self, *, persist: bool = False) -> None:
        self._server = EmbeddedRedis(persist=persist)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def pid(self) -> int:
        return self._server.pid

    def start(self) -> RedisServer:
        self._server.start()
        return self

    def stop(self) -> None:
        self._server.stop()

    def kill9(self) -> None:
        self._server.kill()

    def freeze(self) -> None:
        """Stop it from running without closing its connections, as an overloaded machine does."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.kill9()
        self.start()

    def flush(self) -> None:
        with redis.Redis.from_url(self.url, socket_timeout=5) as client:
            client.flushall()

    def close(self) -> None:
        self._server.close()


@contextlib.contextmanager
def a_redis_server(*, persist: bool = False) -> Iterator[RedisServer]:
    """A server of this test's own, which it may kill."""
    server = RedisServer(persist=persist).start()
    try:
        yield server
    finally:
        server.close()
