"""Connections to Redis that fail in bounded time and never retry behind the caller's back; what failures mean."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    ConnectionError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    TimeoutError,
)

CONNECT_TIMEOUT_S = 2.0
MARGIN_S = 2.0  # a reply may come this long after a blocking command's own limit; later means a dead connection
HEALTH_CHECK_S = 15  # a connection that was idle longer is tried with PING before it is trusted

UNREACHABLE: tuple[type[Exception], ...] = (RedisError, OSError)
"""What any command may raise when Redis or the way to it is broken."""


@dataclass(frozen=True)
class Failing:
    """Why Redis does not do what it is asked."""

    words: str
    """For people, with the next step; a URL or password is never in them."""
    silent: bool
    """Whether there is no answer at all; else Redis is there and refuses."""


REFUSALS: tuple[tuple[tuple[type[Exception], ...], tuple[str, ...], str], ...] = (
    (
        (AuthenticationError, AuthenticationWrongNumberOfArgsError, AuthorizationError),
        ("NOAUTH", "WRONGPASS"),
        "Redis refuses the user or the password ({said}): look at the URL of Redis and its Secret",
    ),
    ((NoPermissionError,), ("NOPERM",), "Redis does not let this user do that ({said}): give it the right (ACL)"),
    ((OutOfMemoryError,), ("OOM",), "Redis is full ({said}): give it more memory"),
    (
        (ReadOnlyError,),
        ("READONLY",),
        "Redis takes no writes ({said}): this is a replica, the URL must name the primary",
    ),
    ((BusyLoadingError,), ("LOADING",), "Redis is loading its data ({said})"),
    ((), ("max number of clients",), "Redis takes no more connections ({said}): raise its maxclients"),
)


OF_PIPELINE = "of pipeline caused error: "  # before it stands the command, with data
ARGUMENTS = ", with args beginning with"  # after it they stand: of AUTH, user and password


def failing(error: BaseException) -> Failing:
    """What a failure of a command, one of UNREACHABLE, means."""
    said = str(error).rpartition(OF_PIPELINE)[2].partition("\n")[0].partition(ARGUMENTS)[0]
    said = said.strip() or type(error).__name__
    for kinds, prefixes, words in REFUSALS:
        if isinstance(error, kinds) or said.startswith(prefixes):
            return Failing(words.format(said=said), silent=False)
    if isinstance(error, ConnectionError | TimeoutError | OSError):
        return Failing(f"Redis does not answer ({said})", silent=True)
    return Failing(f"Redis refuses a command ({said})", silent=False)


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
