"""A key with expiry that tells the controller which plan this worker runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass

import orjson
from redis.asyncio import Redis

from apparate.contract.stream import HEARTBEAT_INTERVAL_S, HEARTBEAT_TTL_S, KEY_TTL_S, worker_key, workers_key
from apparate.service.redis_client import UNREACHABLE, connect


@dataclass(frozen=True)
class Beat:
    """What a heartbeat says. `dropped` counts feedback entries; `refused` is why a plan is not run, empty if it is."""

    worker: str
    epoch: int
    revision: int
    guarded: bool
    in_flight: int
    served: int
    dropped: int
    refused: str = ""
    refused_revision: int = 0


class Heartbeat:
    """Writes the worker's key at once, every HEARTBEAT_INTERVAL_S, and after each `hurry`."""

    def __init__(self, url: str, model: str, worker: str, beat: Callable[[], Beat]) -> None:
        self._client: Redis = connect(url)
        self._key, self._names = worker_key(model, worker), workers_key(model)
        self._worker, self._beat = worker, beat
        self._changed = asyncio.Event()

    def hurry(self) -> None:
        """Write soon: something in the beat changed that others wait for. Event loop only."""
        self._changed.set()

    async def run(self) -> None:
        """Until cancelled. Redis being away is nobody's business here: the key expires, and comes back."""
        while True:
            self._changed.clear()
            with contextlib.suppress(*UNREACHABLE):
                async with self._client.pipeline(transaction=False) as pipeline:
                    pipeline.set(self._key, orjson.dumps(asdict(self._beat())), ex=HEARTBEAT_TTL_S)
                    pipeline.sadd(self._names, self._worker)
                    pipeline.expire(self._names, KEY_TTL_S)
                    await pipeline.execute()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), HEARTBEAT_INTERVAL_S)

    async def close(self, *, keep: bool = False) -> None:
        """Take the key away, so that nobody waits for this worker, and close the connection.

        keep: leave the key, because somebody else in this worker writes it from now on.
        """
        if not keep:
            with contextlib.suppress(*UNREACHABLE):
                await self._client.delete(self._key)
                await self._client.srem(self._names, self._worker)
        await self._client.aclose()
