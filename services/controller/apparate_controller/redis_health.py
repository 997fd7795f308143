"""How Redis is, for people on call: whether it answers, its memory, what it may evict, when its certificate ends."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from apparate.service.redis_client import UNREACHABLE, failing
from apparate.service.telemetry import Telemetry, get_logger
from apparate_controller.sources.redis_stream import eviction_risk

LOOK_S = 10.0
AGAIN_S = 2.0  # while it does not answer
log = get_logger(__name__)


class RedisHealth:
    """Looks at Redis every LOOK_S. Says in the log what changed, and the rest in metrics."""

    def __init__(self, commands: Redis, telemetry: Telemetry) -> None:
        self._commands, self._telemetry = commands, telemetry
        self._said = self._risk = ""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._look()
                self._said = ""
            except UNREACHABLE as error:
                self._telemetry("apparate_redis_up").set(0)
                if (words := failing(error).words) != self._said:
                    log.warning("redis cannot be used, tried again", problem=words)
                self._said = words
            await asyncio.sleep(AGAIN_S if self._said else LOOK_S)

    async def _look(self) -> None:
        began = time.perf_counter()
        await self._commands.ping()
        self._telemetry("apparate_redis_answer_seconds").set(time.perf_counter() - began)
        self._telemetry("apparate_redis_up").set(1)
        with contextlib.suppress(ResponseError):  # managed servers forbid INFO
            memory: Any = await self._commands.info("memory")
            self._telemetry("apparate_redis_used_memory_bytes").set(memory["used_memory"])
            self._telemetry("apparate_redis_memory_limit_bytes").set(memory.get("maxmemory", 0))
        risk = await eviction_risk(self._commands)
        self._telemetry("apparate_redis_eviction_risk").set(bool(risk))
        if risk and risk != self._risk:
            log.warning("redis eviction risk", risk=risk)
        self._risk = risk
        expiry = await certificate_ends(self._commands)
        self._telemetry("apparate_redis_certificate_expiry_timestamp_seconds").set(expiry)


async def certificate_ends(commands: Redis) -> float:
    """When the certificate of the server ends, in seconds since 1970; 0 without TLS, or when it is not looked at."""
    pool: Any = commands.connection_pool
    connection = await pool.get_connection()
    try:
        writer = getattr(connection, "_writer", None)  # the library does not tell otherwise
        certificate = writer.get_extra_info("peercert") if writer is not None else None
    finally:
        await pool.release(connection)
    return float(ssl.cert_time_to_seconds(certificate["notAfter"])) if certificate else 0.0
