"""Connections to Redis that fail in bounded time and never retry behind the caller's back."""

from __future__ import annotations

import contextlib

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

CONNECT_TIMEOUT_S = 2.0
MARGIN_S = 2.0  # a reply may come this long after a blocking command's own limit; later means a dead connection
HEALTH_CHECK_S = 15  # a connection that was idle longer is tried with PING before it is trusted

UNREACHABLE: tuple[type[Exception], ...] = (RedisError, OSError)
"""What any command may raise when Redis or the way to it is broken."""


def connect(url: str, *, block_s: float = 0.0) -> Redis:
    """A client whose commands raise within `block_s` + MARGIN_S when no reply comes; connects at the first command.

    The library's own default is a 5 s timeout with ten silent retries: a longer blocking read on an idle stream then
    raises after a minute, and a command whose reply was lost runs twice. Here the caller sees each failure once.
    Protocol 2, so that replies have one shape with every server version.
    """
    client: Redis = Redis.from_url(
        url,
        socket_timeout=block_s + MARGIN_S,
        socket_connect_timeout=CONNECT_TIMEOUT_S,
        socket_keepalive=True,
        health_check_interval=HEALTH_CHECK_S,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    return client


async def close(client: Redis) -> None:
    """Close a client, also one whose connections are broken."""
    with contextlib.suppress(*UNREACHABLE):
        await client.aclose()
