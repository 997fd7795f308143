"""Which workers serve a model and what plan each runs, from the heartbeat keys that they renew."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from apparate.contract.status import bounded
from apparate.contract.stream import worker_key, workers_key

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
        self._commands, self._model, self._names = commands, model, workers_key(model)

    async def workers(self) -> tuple[WorkerState, ...]:
        """Live workers by name; a heartbeat that cannot be read counts as a worker without a plan."""
        members: Any = await self._commands.smembers(self._names)
        names = sorted(name.decode() for name in members)
        values: Any = await self._commands.mget([worker_key(self._model, name) for name in names]) if names else []
        found = dict(zip(names, values, strict=True))
        if gone := [name for name, value in found.items() if value is None]:
            await self._commands.srem(self._names, *gone)  # one that comes back says so with its next beat
        alive = [_state(name, value) for name, value in found.items() if value is not None]
        return tuple(alive[:MAX_WORKERS])


def _state(name: str, value: bytes) -> WorkerState:
    try:
        data = json.loads(value)
        return WorkerState(
            name,
            revision=bounded(int(data.get("revision", 0))),
            in_flight=int(data.get("in_flight", 0)),
            guarded=bool(data.get("guarded", False)),
            served=int(data.get("served", 0)),
            refused=str(data.get("refused", "")),
            refused_revision=bounded(int(data.get("refused_revision", 0))),
        )
    except (ValueError, TypeError, AttributeError):
        return WorkerState(name)
