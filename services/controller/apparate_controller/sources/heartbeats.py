"""Which workers serve a model and what plan each runs, from the heartbeat keys that they renew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from apparate.contract.stream import worker_key

MAX_WORKERS = 1000  # of one model: the most replicas it may have


@dataclass(frozen=True)
class WorkerState:
    """One live worker."""

    name: str
    revision: int = 0
    in_flight: int = 0
    guarded: bool = False
    served: int = 0
    """Requests that it has answered since it started."""
    refused: str = ""
    """Why it does not run the last plan it was given; empty when it does."""
    refused_revision: int = 0


class RedisHeartbeats:
    """Adapter of loop.Heartbeats."""

    def __init__(self, commands: Redis, model: str) -> None:
        self._commands, self._prefix = commands, worker_key(model, "")

    async def workers(self) -> tuple[WorkerState, ...]:
        """Live workers by name; a heartbeat that cannot be read counts as a worker without a plan."""
        keys = [key async for key in self._commands.scan_iter(match=self._prefix + "*", count=1000)][:MAX_WORKERS]
        values: Any = await self._commands.mget(keys) if keys else []
        found = [
            _state(key.decode().removeprefix(self._prefix), value)
            for key, value in zip(keys, values, strict=True)
            if value is not None
        ]
        return tuple(sorted(found, key=lambda worker: worker.name))


def _state(name: str, value: bytes) -> WorkerState:
    try:
        data = json.loads(value)
        return WorkerState(
            name,
            revision=int(data.get("revision", 0)),
            in_flight=int(data.get("in_flight", 0)),
            guarded=bool(data.get("guarded", False)),
            served=int(data.get("served", 0)),
            refused=str(data.get("refused", "")),
            refused_revision=int(data.get("refused_revision", 0)),
        )
    except (ValueError, TypeError, AttributeError):
        return WorkerState(name)
