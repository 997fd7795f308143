"""What the controller says of Redis: up, memory, eviction, and when its certificate ends, over real TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from apparate.contract.metrics import CONTROLLER
from apparate.service.redis_client import close, connect
from apparate.service.telemetry import Telemetry
from apparate_cluster.certificates import DAYS, Authority
from apparate_controller import redis_health
from apparate_controller.redis_health import RedisHealth
from support.eventually import eventually_async
from support.redis import RedisServer

pytestmark = pytest.mark.redis
DAY_S = 86_400


class Watched:
    """What is shown while Redis is looked at."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def value(self, name: str) -> float | None:
        """The metric's value; None when it has none."""
        return self._telemetry.registry.get_sample_value(name)

    async def becomes(self, name: str, value: float) -> None:
        """Wait until the metric has this value."""
        await eventually_async(lambda: self.value(name) == value, within=10)


@contextlib.asynccontextmanager
async def watching(url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    """Redis is looked at many times a second until the block ends."""
    monkeypatch.setattr(redis_health, "LOOK_S", 0.02)
    monkeypatch.setattr(redis_health, "AGAIN_S", 0.02)
    telemetry, client = Telemetry(CONTROLLER), connect(url)
    task = asyncio.create_task(RedisHealth(client, telemetry).run())
    try:
        yield Watched(telemetry)
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await close(client)


async def test_its_memory_its_eviction_and_its_end_are_seen_while_they_change(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(own_redis.url, monkeypatch) as watched:
        await watched.becomes("apparate_redis_memory_limit_bytes", 512 * 2**20)
        assert 1e5 < (watched.value("apparate_redis_used_memory_bytes") or 0) < 512 * 2**20
        assert watched.value("apparate_redis_eviction_risk") == 0
        assert watched.value("apparate_redis_certificate_expiry_timestamp_seconds") == 0  # no TLS
        other = connect(own_redis.url)
        await other.config_set("maxmemory-policy", "allkeys-lru")
        await watched.becomes("apparate_redis_eviction_risk", 1)
        await close(other)
        own_redis.kill9()
        await watched.becomes("apparate_redis_up", 0)
        own_redis.start()
        await watched.becomes("apparate_redis_up", 1)


async def test_a_user_who_may_not_ask_for_memory_hears_of_the_rest(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = connect(own_redis.url)
    await admin.execute_command("ACL", "SETUSER", "few", "on", ">secret", "~*", "+@all", "-info", "-config")
    url = f"redis://few:secret@127.0.0.1:{own_redis.port}/0"
    async with watching(url, monkeypatch) as watched:
        await watched.becomes("apparate_redis_up", 1)
        await watched.becomes("apparate_redis_eviction_risk", 0)
        assert watched.value("apparate_redis_used_memory_bytes") == 0
    await close(admin)


async def test_the_end_of_its_certificate_is_told(
    own_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.issue("redis", "/CN=redis", usage="serverAuth", addresses="IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", own_redis.port)
        await asyncio.gather(pump(reader, behind[1]), pump(behind[0], writer), return_exceptions=True)

    front = await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context)
    port = front.sockets[0].getsockname()[1]
    host = own_redis.url.replace("redis://", "rediss://").replace(f":{own_redis.port}/", f":{port}/")
    async with watching(f"{host}?ssl_ca_certs={authority.certificate}", monkeypatch) as watched:
        name = "apparate_redis_certificate_expiry_timestamp_seconds"
        await eventually_async(lambda: watched.value(name), within=10)
        assert watched.value(name) == pytest.approx(time.time() + int(DAYS) * DAY_S, abs=DAY_S)
    front.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Bytes from one to the other until the end."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()
