"""Time from a decision of the controller to the plan in force at the workers, through the status of a real API server.

    make bench-delivery ARGS="--seconds 45 --workers 2"

Everything is real: etcd and kube-apiserver, redis-server, the controller and the workers as processes, each worker
with rights on its own object only. Feedback is made up so that exits open and close in turn; the time runs from
`decidedAt` in the plan to the worker's own log line "plan in force", on the clock of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import redis

from apparate.catalog import RampCatalog
from apparate.contract.schema import crd
from apparate.contract.stream import FIELD, feedback_key
from apparate.contract.wire import encode_feedback
from apparate.feedback import FINAL, FeedbackBatch
from apparate.service.kube import models_path
from apparate.service.redis_server import EmbeddedRedis
from apparate.service.watch import Changed, Watch
from support.eventually import eventually
from support.kube import a_control_plane
from support.models import write_prepared
from support.objects import Objects, a_client
from support.processes import Process, a_process

NAME = "tiny"
WINDOW = 512
PAUSE_S = (2.2, 4.0)  # between decisions, drawn; one that comes sooner waits for the second of the last write
SETTLE_S = 4.0  # most time that a decision may take to be seen before the next is provoked


class Feedback:
    """Made-up feedback of one worker."""

    def __init__(self, url: str, key: str, catalog: RampCatalog) -> None:
        self._client, self._key, self._catalog = redis.Redis.from_url(url, socket_timeout=5), key, catalog
        self._seq = 0

    def send(self, plan: dict[str, Any], records: int, *, right: bool) -> None:
        """Records on which every ramp is sure; and right, or wrong in answers that were released."""
        ramps = tuple(one["ramp"] for one in plan["ramps"])
        for _ in range(0, records, 64):
            batch = FeedbackBatch(
                model=self._key,
                worker="bench",
                epoch=1,
                seq=self._seq,
                revision=plan["revision"],
                padded_size=64,
                ramps=ramps,
                errors=np.full((64, len(ramps)), 0.01, np.float32),
                labels=np.full((64, len(ramps)), 0 if right else 1, np.int32),
                final_labels=np.zeros(64, np.int32),
                exits=np.full(64, FINAL if right else ramps[0], np.int32),
                catalog=self._catalog.digest,
            )
            self._client.xadd(feedback_key(self._key), {FIELD: encode_feedback(replace(batch, guarded=not right))})
            self._seq += 1

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


async def provoke(objects: Objects, feedback: Feedback, seconds: float) -> dict[int, float]:
    """Have the controller decide again and again; when each revision was decided, in wall time."""
    decided: dict[int, float] = {}
    plan: dict[str, Any] = {}
    client = a_client(objects.cluster)
    came = asyncio.Event()

    async def follow() -> None:
        nonlocal plan
        async for event in Watch(client, models_path(objects.namespace), name=NAME).events():
            found = event.object.get("status", {}).get("plan") if isinstance(event, Changed) else None
            if found and found["revision"] not in decided:
                plan = found
                decided[found["revision"]] = datetime.fromisoformat(found["decidedAt"]).timestamp()
                came.set()

    following = asyncio.create_task(follow())
    await asyncio.wait_for(came.wait(), 20)
    until = time.monotonic() + seconds
    right = True
    while time.monotonic() < until:
        came.clear()
        await asyncio.to_thread(feedback.send, plan, WINDOW + 128 if right else 128, right=right)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(came.wait(), SETTLE_S)
        right = not right
        await asyncio.sleep(random.uniform(*PAUSE_S))
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    client.close()
    return decided


def in_force(worker: Process) -> Iterator[tuple[int, float]]:
    """(revision, wall time) of each plan that a worker took."""
    for line in worker.err:
        with contextlib.suppress(ValueError, KeyError):
            said = json.loads(line)
            if said["event"] == "plan in force":
                yield said["revision"], datetime.fromisoformat(said["timestamp"]).timestamp()


def processes(
    stack: contextlib.ExitStack, objects: Objects, redis_url: str, prepared: Path, workers: int
) -> list[Process]:
    """The controller and the workers, ready; only the workers are returned."""
    controller = {
        "EEM_CONTROLLER_KUBERNETES": "true",
        "EEM_CONTROLLER_KUBECONFIG": str(objects.cluster.kubeconfig),
        "EEM_CONTROLLER_NAMESPACES": objects.namespace,
        "EEM_CONTROLLER_REDIS_URL": redis_url,
        "EEM_CONTROLLER_PORT": "0",
        "EEM_CONTROLLER_LEASE_NAMESPACE": objects.namespace,
    }
    worker = {
        "EEM_WORKER_OBJECT": f"{objects.namespace}/{NAME}",
        "EEM_WORKER_KUBECONFIG": str(objects.reader_of(NAME)),
        "EEM_WORKER_PREPARED": str(prepared),
        "EEM_WORKER_REDIS_URL": redis_url,
        "EEM_WORKER_HTTP_PORT": "0",
        "EEM_WORKER_GRPC_PORT": "0",
    }
    module = [sys.executable, "-m"]
    started = [
        stack.enter_context(a_process([*module, "apparate_worker"], {**worker, "EEM_WORKER_NAME": f"w{i}"}))
        for i in range(workers)
    ]
    adapting = stack.enter_context(a_process([*module, "apparate_controller"], controller))
    for process in (*started, adapting):
        eventually(lambda process=process: process.out or process.popen.poll() is not None, within=60)  # type: ignore[misc]
        if process.popen.poll() is not None:
            raise SystemExit("\n".join(process.err[-5:]))
    return started


def measure(seconds: float, workers: int) -> dict[str, Any]:
    """All of it once."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="apparate-bench-")))
        server = EmbeddedRedis()
        stack.callback(server.close)
        server.start()
        cluster = stack.enter_context(a_control_plane())
        cluster.install_crd(crd())
        objects = Objects(cluster, stack.enter_context(cluster.namespace()))
        write_prepared(folder)
        prepared = folder / "prepared" / "default" / NAME
        catalog = RampCatalog.from_json(json.loads((prepared / "catalog.json").read_text()))
        uid = objects.create(NAME, adaptation={"window": WINDOW}, serving={"device": "cpu"})["metadata"]["uid"]
        objects.prepare(NAME, catalog)
        feedback = Feedback(server.url, f"{objects.namespace}/{NAME}/{uid}", catalog)
        stack.callback(feedback.close)
        serving = processes(stack, objects, server.url, prepared, workers)
        decided = asyncio.run(provoke(objects, feedback, seconds))
        time.sleep(1.5)
        took = sorted(
            1e3 * (at - decided[revision])
            for worker in serving
            for revision, at in in_force(worker)
            if revision in decided and revision > 1  # the first plan was there before the worker
        )
    return {
        "cores": os.cpu_count(),
        "plans": len(decided) - 1,
        "workers": workers,
        "deliveries": len(took),
        "p50_ms": round(statistics.median(took), 1),
        "p99_ms": round(took[min(len(took) - 1, int(0.99 * len(took)))], 1),
        "max_ms": round(took[-1], 1),
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=45.0, help="how long decisions are provoked")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the one model")
    asked = parser.parse_args()
    print(json.dumps(measure(asked.seconds, asked.workers), indent=2))


if __name__ == "__main__":
    main()
