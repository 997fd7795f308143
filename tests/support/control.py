"""What tests of the controller share: a model, its batches, a loop on a real Redis, a producer with honest books."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import redis

from apparate.catalog import RampCatalog
from apparate.contract.stream import FIELD, feedback_key
from apparate.contract.wire import encode_feedback
from apparate.feedback import FINAL, FeedbackBatch
from apparate.service.redis_client import connect
from apparate_controller.loop import ModelLoop
from apparate_controller.ports import Ports
from apparate_controller.sinks.redis import RedisPlanSink
from apparate_controller.sources.heartbeats import RedisHeartbeats
from apparate_controller.sources.redis_stream import RedisFeedbackSource
from support.fakes import FakeObserver, FakeSession

MODEL = "default/m/local"
CATALOG = RampCatalog(
    batch_sizes=(1, 8),
    reach_ms=np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]),
    overhead_ms=np.full((2, 3), 0.01),
    full_ms=np.array([4.0, 8.0]),
    layers=("a", "b", "c"),
)

DOCUMENT = """
apiVersion: apparate.dev/v1alpha1
kind: EarlyExitModel
metadata: {name: %s}
spec:
  model: {source: weights, entrypoint: "a.b:c"}
  bootstrap: {data: data.npz}
"""


def a_batch(
    seq: int = 0, *, n: int = 4, worker: str = "w", epoch: int = 1, revision: int = 1, seed: int | None = None
) -> FeedbackBatch:
    """A batch over all three ramps."""
    draw = np.random.default_rng(seq if seed is None else seed)
    return FeedbackBatch(
        model=MODEL,
        worker=worker,
        epoch=epoch,
        seq=seq,
        revision=revision,
        padded_size=n,
        ramps=(0, 1, 2),
        errors=draw.random((n, 3), np.float32),
        labels=draw.integers(0, 2, (n, 3), dtype=np.int32),
        final_labels=draw.integers(0, 2, n, dtype=np.int32),
        exits=np.full(n, FINAL, np.int32),
        catalog=CATALOG.digest,
    )


def payload(seq: int = 0, **changes: object) -> bytes:
    """The bytes of a batch's stream entry."""
    return encode_feedback(a_batch(seq, **changes))  # type: ignore[arg-type]


def a_document(folder: Path, *names: str) -> Path:
    """A YAML file of models whose prepared catalogs are there."""
    names = names or ("m",)
    path = folder / "models.yaml"
    path.write_text("---".join(DOCUMENT % name for name in names))
    for name in names:
        prepare(folder, name)
    return path


def prepare(folder: Path, name: str) -> Path:
    """Write the catalog of a prepared model."""
    catalog = folder / "prepared" / "default" / name / "catalog.json"
    catalog.parent.mkdir(parents=True, exist_ok=True)
    catalog.write_text(json.dumps(CATALOG.to_json()))
    return catalog


class Producer:
    """A worker's feedback: numbers every batch, whether Redis takes it or not, and keeps the bytes for repeats."""

    def __init__(self, url: str, worker: str = "w", epoch: int = 1) -> None:
        self.client = redis.Redis.from_url(url, socket_timeout=1, retry=None)
        self.worker, self.epoch = worker, epoch
        self.produced = self.dropped = 0

    def send(self, count: int = 1, *, n: int = 4, revision: int = 1) -> None:
        for _ in range(count):
            data = payload(self.produced, worker=self.worker, epoch=self.epoch, n=n, revision=revision)
            self.produced += 1
            try:
                self.client.xadd(feedback_key(MODEL), {FIELD: data}, maxlen=10_000)
            except (redis.RedisError, OSError):
                self.dropped += 1

    def repeat(self, seq: int, *, n: int = 4) -> None:
        data = payload(seq, worker=self.worker, epoch=self.epoch, n=n)
        self.client.xadd(feedback_key(MODEL), {FIELD: data})

    def close(self) -> None:
        self.client.close()


def producing(url: str) -> contextlib.closing[Producer]:
    """A producer that is closed in the end."""
    return contextlib.closing(Producer(url))


class Running:
    """A loop on a real Redis with a fake session."""

    def __init__(self, loop: ModelLoop, observer: FakeObserver, task: asyncio.Task[None]) -> None:
        self.loop, self.observer, self.task = loop, observer, task

    @property
    def session(self) -> FakeSession:
        found = self.loop._intake
        assert found is not None and isinstance(found.session, FakeSession)
        return found.session

    def accounted(self) -> int:
        """Batches processed, plus those declared lost."""
        totals = self.loop.progress.totals
        return totals.batches + totals.lost

    async def stop(self) -> None:
        self.loop.stop()
        await asyncio.wait_for(self.task, 10)

    async def kill(self) -> None:
        """End it at whatever it is doing, with nothing stored."""
        while not self.task.done():  # asyncio.wait_for of Python 3.11 can swallow a cancel
            self.task.cancel()
            await asyncio.wait({self.task}, timeout=0.05)


@contextlib.asynccontextmanager
async def a_loop(
    url: str, *, consumer: str = "controller", block_s: float = 0.3, every: int = 100, size: int = 1000
) -> AsyncIterator[Running]:
    """A running loop, stopped at the end."""
    reader, commands = connect(url, block_s=block_s), connect(url)
    source = RedisFeedbackSource(reader, commands, MODEL, consumer=consumer, block_s=block_s)
    observer = FakeObserver()
    ports = Ports(source, RedisPlanSink(commands, MODEL), RedisHeartbeats(commands, MODEL), observer)
    loop = ModelLoop(
        MODEL, CATALOG, lambda plan: FakeSession(plan, every=every, size=size, catalog=CATALOG.digest), ports
    )
    running = Running(loop, observer, asyncio.create_task(loop.run()))
    try:
        yield running
    finally:
        loop.stop()
        await asyncio.gather(running.task, return_exceptions=True)
        await reader.aclose()
        await commands.aclose()
