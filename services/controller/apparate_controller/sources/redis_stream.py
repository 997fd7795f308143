"""Feedback of one model from its Redis Stream: one active consumer, at least once, acked with its progress."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from apparate.contract.stream import FIELD, GROUP, KEY_TTL_S, feedback_key, state_key
from apparate_controller.errors import FeedbackStalled
from apparate_controller.progress import NOWHERE, stream_order

READ_ENTRIES = 200  # most entries of one read: a burst is taken in few commands, a decision waits for none of them
TAKEOVER_ENTRIES = 100
LAG_COUNTED = 500  # servers before 7.0 do not tell the lag; it is counted up to here


@dataclass(frozen=True)
class Entry:
    """One stream entry; `payload` is None when the stream was trimmed before the entry was acked."""

    id: str
    payload: bytes | None


@dataclass(frozen=True)
class Backlog:
    """What waits: `lag` entries not yet delivered, `pending` delivered and not acked, `length` in the stream."""

    lag: int = 0
    pending: int = 0
    length: int = 0


class RedisFeedbackSource:
    """Adapter of loop.FeedbackSource.

    Two clients, because a blocking read holds its connection. After any error the owner calls `open` again, which
    makes sure of the group, takes over what other consumers left unacked and starts with the own unacked entries.
    """

    def __init__(
        self, reader: Redis, commands: Redis, model: str, *, consumer: str, block_s: float, count: int = READ_ENTRIES
    ) -> None:
        self._reader, self._commands = reader, commands
        self._stream, self._state = feedback_key(model), state_key(model)
        self._consumer, self._block_ms, self._count = consumer, max(1, int(block_s * 1000)), count
        self._own: str | None = NOWHERE
        """Own unacked entries are read from after this id; None when there are no more."""

    async def load(self) -> dict[str, str]:
        """The stored progress; empty when there is none."""
        stored: Any = await self._commands.hgetall(self._state)
        return {name.decode(): value.decode() for name, value in stored.items()}

    async def open(self, last_id: str) -> str:
        """Get ready to read what came after `last_id`; the id to go on from.

        That is another one when the stream is not the one `last_id` came from: a server that lost its data numbers
        entries anew, and those below `last_id` would never be delivered.
        """
        await self._reader.connection_pool.disconnect()  # a broken connection may still carry an old reply
        last_id = await self._ensure_group(last_id)
        await self._take_over()
        self._own = NOWHERE
        return last_id

    async def _ensure_group(self, last_id: str) -> str:
        try:
            newest = _text((await self._commands.xinfo_stream(self._stream))["last-generated-id"])
        except ResponseError as error:
            if "no such key" not in str(error):
                raise
            newest = NOWHERE
        if stream_order(newest) < stream_order(last_id):
            last_id = NOWHERE
        try:
            await self._commands.xgroup_create(self._stream, GROUP, id=last_id, mkstream=True)
            await self._commands.expire(self._stream, KEY_TTL_S)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        return last_id

    async def _take_over(self) -> None:
        """Move what other consumers left unacked to this one, and remove them: exactly one controller reads a model."""
        for other in await self._commands.xinfo_consumers(self._stream, GROUP):
            name = _text(other["name"])
            if name == self._consumer:
                continue
            cursor: str = NOWHERE
            while other["pending"]:
                reply: Any = await self._commands.xautoclaim(
                    self._stream, GROUP, self._consumer, 0, start_id=cursor, count=TAKEOVER_ENTRIES
                )
                cursor = _text(reply[0])
                if cursor == NOWHERE:
                    break
            await self._commands.xgroup_delconsumer(self._stream, GROUP, name)

    async def read(self) -> list[Entry]:
        """The next entries, oldest first: own unacked ones, then new ones; empty when none came for a while.

        Raises FeedbackStalled when entries wait and the server does not hand them out.
        """
        if self._own is not None:
            entries = await self._read_group(self._own, block_ms=None)
            self._own = entries[-1].id if entries else None
            if entries:
                return entries
        entries = await self._read_group(">", block_ms=self._block_ms)
        if not entries and (await self.backlog()).lag:
            again = await self._read_group(">", block_ms=None)  # what came between the two commands
            if not again:
                raise FeedbackStalled(f"{self._stream} has entries that consumer {self._consumer} is not given")
            return again
        return entries

    async def _read_group(self, after: str, block_ms: int | None) -> list[Entry]:
        reply: Any = await self._reader.xreadgroup(
            GROUP, self._consumer, {self._stream: after}, count=self._count, block=block_ms
        )
        entries = reply[0][1] if reply else []
        return [Entry(_text(entry), fields.get(FIELD) if fields else None) for entry, fields in entries]

    async def commit(self, ids: Sequence[str], stored: Mapping[str, str], forgotten: Sequence[str] = ()) -> None:
        """Store progress and ack the entries in one transaction, so that neither is ever there without the other."""
        async with self._commands.pipeline(transaction=True) as pipeline:
            fields: Any = dict(stored)
            pipeline.hset(self._state, mapping=fields)
            if forgotten:
                pipeline.hdel(self._state, *forgotten)
            pipeline.expire(self._state, KEY_TTL_S)
            if ids:
                pipeline.xack(self._stream, GROUP, *ids)
            await pipeline.execute()

    async def history(self, last_id: str) -> AsyncIterator[list[Entry]]:
        """Entries up to and with `last_id` in pages, newest first."""
        upper = last_id
        while True:
            page: Any = await self._commands.xrevrange(self._stream, max=upper, count=self._count)
            if page:
                yield [Entry(_text(entry), fields.get(FIELD)) for entry, fields in page]
            if len(page) < self._count:
                return
            upper = f"({_text(page[-1][0])}"

    async def backlog(self) -> Backlog:
        """What waits in the stream."""
        info = await self._commands.xinfo_stream(self._stream)
        for group in await self._commands.xinfo_groups(self._stream):
            if _text(group["name"]) == GROUP:
                lag = group.get("lag")
                delivered, newest = _text(group["last-delivered-id"]), _text(info["last-generated-id"])
                if stream_order(newest) <= stream_order(delivered) or not info["length"]:
                    lag = 0  # before any count: a trimmed stream's own count can be wrong
                elif lag is None:
                    waiting: Any = await self._commands.xrange(self._stream, min=f"({delivered}", count=LAG_COUNTED)
                    lag = len(waiting)
                return Backlog(int(lag), int(group["pending"]), int(info["length"]))
        return Backlog(length=int(info["length"]))


async def eviction_risk(commands: Redis) -> str:
    """Why Redis may throw feedback or plans away when memory is short; empty when it does not, or will not say."""
    try:
        policy = (await commands.config_get("maxmemory-policy")).get("maxmemory-policy", "noeviction")
    except ResponseError:  # managed servers forbid CONFIG
        return ""
    if policy == "noeviction":
        return ""
    return f"maxmemory-policy is {policy}: Redis may evict streams and their groups; noeviction keeps them"


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
