"""Speed of the controller's part: records fed in a second, and the time from feedback to a published plan.

    python tools/bench/controller.py [--seconds 3]

Prints one JSON object. `session`: batches that were decoded beforehand; `intake`: stream entries, with decoding and the
position of the worker. The latency is measured on a redis-server of its own: from just before the XADD of the batch
that triggers a decision to the moment a reader of the plan stream has the new plan, with the session that ships.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from apparate.catalog import RampCatalog
from apparate.contract.metrics import CONTROLLER
from apparate.contract.resource import Bootstrap, EarlyExitModel, Metadata, ModelSource, Spec, TensorSpec
from apparate.contract.stream import FIELD, PLAN_FIELD, feedback_key, plans_key
from apparate.contract.wire import encode_feedback
from apparate.feedback import FINAL, FeedbackBatch
from apparate.plan import Plan
from apparate.service.redis_client import connect
from apparate.service.redis_server import EmbeddedRedis
from apparate.service.telemetry import Telemetry, configure_logging
from apparate_controller.intake import Intake, Took
from apparate_controller.loop import ModelLoop
from apparate_controller.observe import ModelObserver
from apparate_controller.ports import Ports
from apparate_controller.progress import Progress
from apparate_controller.session import ModelSession
from apparate_controller.sinks.redis import RedisPlanSink
from apparate_controller.sources.heartbeats import RedisHeartbeats
from apparate_controller.sources.redis_stream import Entry, RedisFeedbackSource

RAMPS = 12
SIZES = (1, 8, 32)
CATALOG = RampCatalog(
    batch_sizes=SIZES,
    reach_ms=np.outer(SIZES, np.arange(1, RAMPS + 1, dtype=float)),
    overhead_ms=np.outer(SIZES, np.full(RAMPS, 0.005)),
    full_ms=np.array(SIZES, float) * (RAMPS + 1),
)
SPEC = Spec(
    model=ModelSource(source="w", entrypoint="a:b", inputs=(TensorSpec(name="x", datatype="FP32", shape=(1,)),)),
    bootstrap=Bootstrap(data="d.npz"),
)
PAUSED = SPEC.model_copy(update={"adaptation": SPEC.adaptation.model_copy(update={"paused": True})})
DOCUMENT = EarlyExitModel(metadata=Metadata(name="bench"), spec=SPEC)


def batches(size: int, ramps: tuple[int, ...], revision: int = 1) -> Iterator[FeedbackBatch]:
    """Endless feedback in which deeper ramps are surer and right more often."""
    draw, seq = np.random.default_rng(7), 0
    depth = (np.array(ramps) + 1) / RAMPS
    while True:
        hard = draw.random(size)[:, None]
        errors = np.clip(hard * (1.3 - depth) + draw.normal(0, 0.05, (size, len(ramps))), 0, 1).astype(np.float32)
        wrong = draw.random((size, len(ramps))) < errors * 0.4 * (errors > 0.1)
        yield FeedbackBatch(
            model=DOCUMENT.key,
            worker="bench",
            epoch=1,
            seq=seq,
            revision=revision,
            padded_size=size,
            ramps=ramps,
            errors=errors,
            labels=wrong.astype(np.int32),
            final_labels=np.zeros(size, np.int32),
            exits=np.full(size, FINAL, np.int32),
            catalog=CATALOG.digest,
        )
        seq += 1


def feeding(size: int, seconds: float, *, columns: int) -> dict[str, float]:
    """Records a second that a session takes from decoded batches when no decision is due."""
    session = ModelSession(CATALOG, PAUSED, Plan(0))
    session.start()
    made = list(islice(batches(size, tuple(range(columns)), session.plan.revision), 2000))
    fed, spent = 0, 0.0
    while spent < seconds:
        fresh = [replace(batch) for batch in made]  # nothing is known of them yet
        started = time.perf_counter()
        for batch in fresh:
            session.feed(batch)
        spent += time.perf_counter() - started
        fed += len(fresh) * size
    return {"batch": size, "ramps": columns, "records_per_s": round(fed / spent)}


def throughput(size: int, seconds: float, *, deciding: bool) -> dict[str, float]:
    """Records a second through decoding, position keeping and the session; with or without its decisions."""
    session = ModelSession(CATALOG, SPEC if deciding else PAUSED, Plan(0))
    session.start()
    ramps = session.plan.active
    made = batches(size, ramps, session.plan.revision)
    entries = [Entry(f"{i + 1}-0", encode_feedback(next(made))) for i in range(max(2000, 40_000 // size))]
    intake = Intake(DOCUMENT.key, CATALOG, session, Progress())
    waiting, decisions = deque(entries), []
    started = time.perf_counter()
    while waiting and time.perf_counter() - started < seconds:
        took = intake.take(waiting)
        if took.decision is not None:
            decisions.append(took.decision_s)
    wall = time.perf_counter() - started
    records = (len(entries) - len(waiting)) * size
    return {
        "batch": size,
        "ramps": len(ramps),
        "records_per_s": round(records / wall),
        "decisions": len(decisions),
        "decision_ms_median": round(1e3 * statistics.median(decisions), 2) if decisions else 0.0,
        "decision_ms_max": round(1e3 * max(decisions), 2) if decisions else 0.0,
    }


class Timing(ModelObserver):
    """Keeps the time that the session took for each plan."""

    decided_s: dict[int, float]

    def took(self, took: Took) -> None:
        """Entries were worked off."""
        super().took(took)
        if took.decision is not None and took.decision.plan is not None:
            self.decided_s[took.decision.plan.revision] = took.decision_s


async def latency(url: str, seconds: float) -> dict[str, float]:
    """Feedback to plan over Redis with the session that ships: one batch at a time, under the plan in force."""
    reader, commands, watcher = clients = [connect(url, block_s=1.0), connect(url), connect(url, block_s=1.0)]
    observer = Timing(Telemetry(CONTROLLER), DOCUMENT, CATALOG)
    observer.decided_s = {}
    ports = Ports(
        RedisFeedbackSource(reader, commands, DOCUMENT.key, consumer="bench", block_s=1.0),
        RedisPlanSink(commands, DOCUMENT.key),
        RedisHeartbeats(commands, DOCUMENT.key),
        observer,
    )
    loop = ModelLoop(DOCUMENT.key, CATALOG, lambda plan: ModelSession(CATALOG, SPEC, plan), ports)
    arrived: dict[int, float] = {}

    async def watch() -> None:
        last: bytes | str = "0"
        while True:
            for entry, fields in (await watcher.xread({plans_key(DOCUMENT.key): last}, block=1000) or [[0, []]])[0][1]:
                arrived[json.loads(fields[PLAN_FIELD])["revision"]] = time.perf_counter()
                last = entry

    running, watching = asyncio.create_task(loop.run()), asyncio.create_task(watch())
    while 1 not in arrived:  # noqa: ASYNC110 - a bench, not a service
        await asyncio.sleep(0.01)
    sent: dict[int, float] = {}
    plan = loop.plan
    assert plan is not None
    made, until, number = batches(32, plan.active, plan.revision), time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        ramps, revision = loop.plan.active, loop.plan.revision
        batch = next(made)
        columns = [plan.active.index(ramp) for ramp in ramps if ramp in plan.active]
        batch = replace(
            batch,
            ramps=tuple(plan.active[c] for c in columns),
            errors=batch.errors[:, columns],
            labels=batch.labels[:, columns],
            shadow=(),
            revision=revision,
        )
        number += 1
        at = time.perf_counter()
        entry = (await commands.xadd(feedback_key(DOCUMENT.key), {FIELD: encode_feedback(batch)})).decode()
        while loop.progress.last_id != entry:  # noqa: ASYNC110 - acks come in bundles, and nobody waits for them
            await asyncio.sleep(0.0005)
        if loop.plan.revision > revision:
            sent[loop.plan.revision] = at
    await asyncio.sleep(0.1)
    loop.stop()
    watching.cancel()
    await asyncio.gather(running, watching, return_exceptions=True)
    for client in clients:
        await client.aclose()
    took = sorted(1e3 * (arrived[revision] - at) for revision, at in sent.items())
    rest = [1e3 * (arrived[revision] - at - observer.decided_s[revision]) for revision, at in sent.items()]
    return {
        "batches": number,
        "plans": len(took),
        "p50_ms": round(statistics.median(took), 2),
        "max_ms": round(took[-1], 2),
        "p50_without_decision_ms": round(statistics.median(rest), 2),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="longest time of each throughput run")
    asked = parser.parse_args()
    configure_logging("ERROR")
    found: dict[str, object] = {
        "session": [feeding(size, asked.seconds, columns=columns) for size in (8, 32) for columns in (RAMPS, 3)],
        "intake": [throughput(size, asked.seconds, deciding=False) for size in (8, 32)],
        "intake_with_decisions": [throughput(size, asked.seconds, deciding=True) for size in (8, 32)],
    }
    server = EmbeddedRedis()
    server.start()
    try:
        found["feedback_to_plan"] = asyncio.run(latency(server.url, 4 * asked.seconds))
    finally:
        server.close()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
