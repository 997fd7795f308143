"""One version of one model as it is served: what it needs from warming up to its last feedback."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from apparate import __version__
from apparate.contract.document import Document
from apparate.contract.resource import TensorSpec
from apparate.contract.serving import Slo
from apparate.contract.stream import feedback_key
from apparate.plan import Plan
from apparate.service.telemetry import Telemetry, get_logger
from apparate_worker.batching import WANTED_S, Batcher
from apparate_worker.cache import Cache
from apparate_worker.compact import Compact, partings
from apparate_worker.device import DeviceThread
from apparate_worker.engine import Array, Engine, Schedule, link_to, warm_up
from apparate_worker.errors import InvalidSetup, NotReady, words_of
from apparate_worker.feedback import Identity, RedisSender, Reporter
from apparate_worker.guard import Promise, WorkerGuard
from apparate_worker.heartbeat import Beat, Heartbeat
from apparate_worker.liveness import longest_pause_s
from apparate_worker.metering import Meter
from apparate_worker.model.store import PreparedModel
from apparate_worker.objects import Wishes, plan_source
from apparate_worker.passes import Pass
from apparate_worker.passtimes import PassTimes
from apparate_worker.plain import remaining_table
from apparate_worker.plans import PlanKeeper, PlanSource, follow
from apparate_worker.policies import policy_of
from apparate_worker.protocol.dataplane import VERSION, Dataplane
from apparate_worker.protocol.tensors import BYTES, DTYPES
from apparate_worker.serving import TAIL_BATCHES, Serving
from apparate_worker.settings import WorkerSettings
from apparate_worker.tracing import RequestTraces, traces_of

REFUSED_CHARS = 300  # of why a plan is refused, in a heartbeat and from there in the status
EARLY_SHADOW_COST = 0.1  # share of the passes' time that shadows may take while no exit has been open
WARM_SIZE = 32  # size of dimensions that vary, when warming up
Keep = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
log = get_logger(__name__)


@dataclass(frozen=True)
class Declared:
    """A model to serve: its document, and what was prepared for it."""

    document: Document
    prepared: PreparedModel

    @property
    def name(self) -> str:
        """The model's name in requests."""
        return self.document.model.metadata.name


class Served:
    """Make it and use it in the event loop: `warm_up`, `start`, then `end`.

    alive: whether the device turns.
    """

    def __init__(
        self,
        declared: Declared,
        settings: WorkerSettings,
        device: torch.device,
        thread: DeviceThread,
        telemetry: Telemetry,
        *,
        alive: Callable[[], bool],
        version: str = VERSION,
        traces: RequestTraces | None = None,
    ) -> None:
        document, prepared = declared.document, declared.prepared
        spec, catalog, meta = document.model.spec, prepared.catalog, document.model.metadata
        self.name, self.document, self.spec = meta.name, document, spec
        self._settings, self._thread, self._alive = settings, thread, alive
        self._device, self._catalog = device, catalog
        self._epoch, self._traces = int(time.time() * 1000), traces
        self._budget = spec.budget.accuracy_loss
        self.meter = Meter(telemetry, meta.namespace, meta.name, catalog, spec.serving.max_batch)
        self._engine = Engine(prepared.model, prepared.heads, link_to(device))
        slo, times = spec.serving.slo, PassTimes.of_catalog(catalog, spec.serving.max_batch)
        self.batcher = Batcher(
            max_batch=spec.serving.max_batch,
            max_delay_s=spec.serving.max_delay_ms / 1e3,
            max_queue=spec.serving.max_queue,
            times=times,
            policy=policy_of(spec.serving, times),
            low_share=spec.serving.batching.low_queue_share,
            wanted_s=slo.latency_ms / 1e3 if slo else WANTED_S,
        )
        key, url = document.model.key, settings.redis_url
        self._sender = RedisSender(url, feedback_key(key)) if url else None
        self._reporter = Reporter(
            Identity(key, settings.name, self._epoch, catalog.digest),
            [head.on_host() for head in prepared.heads],
            shadow_share=spec.adaptation.shadow_share,
            early_share=EARLY_SHADOW_COST / max(catalog.overhead_share(range(catalog.ramps)), EARLY_SHADOW_COST),
            sender=self._sender,
            on_passes=self._passed,
        )
        promise = Promise.of(spec.budget, spec.serving.checked_share)
        self.guard = WorkerGuard(promise, self._sharers(spec.serving.replicas))
        self.keeper = PlanKeeper(catalog, spec.budget.ramp_overhead)
        remaining = remaining_table(catalog, TAIL_BATCHES * spec.serving.max_batch).tolist()
        self._compact = Compact(lambda ramp, rows: remaining[rows][ramp], seed=self._epoch)
        self.serving = Serving(
            engine=self._engine,
            batcher=self.batcher,
            inputs=prepared.inputs,
            schedule=Schedule(self.keeper.plan, catalog.ramps),
            guard=self.guard,
            reports=self._reporter,
            loop=asyncio.get_running_loop(),
            max_batch=spec.serving.max_batch,
            remaining_ms=lambda ramp, rows: remaining[rows][ramp],
            threads=spec.serving.threads,
            compact=self._compact,
            trial={spec.name: warm_array(spec, 1) for spec in prepared.inputs},
        )
        kept = spec.serving.response_cache
        self.cache = Cache(kept.max_bytes, kept.ttl_seconds) if kept else None
        self.serving.remembers = kept is not None
        self.serving.traced = self._reporter.traced = traces is not None
        self.dataplane = Dataplane(
            name=meta.name,
            inputs=prepared.inputs,
            output=prepared.output,
            classes=prepared.classes,
            layers=catalog.layers,
            batcher=self.batcher,
            queue_timeout_s=spec.serving.timeout_ms / 1e3,
            alive=self._well,
            version=version,
            count=self.meter.answered,
            default_priority=spec.serving.batching.default_priority,
            objective_s=self._limit_s(slo),
            cache=self.cache,
            client_exits=spec.serving.client_exits,
        )
        self.longest_s = spec.serving.stall_seconds or longest_pause_s(catalog, spec.serving.max_batch)
        """How long a step of a pass may take."""
        self._source: PlanSource | None = None
        self._heartbeat: Heartbeat | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._arranging: asyncio.Task[None] | None = None
        self._arranged: Schedule | None = None

    def warm_up(self) -> None:
        """Run passes that nobody waits for. Not in the event loop, nor the device thread. Raises InvalidSetup."""
        torch.set_num_threads(self.spec.serving.threads)
        ramps = self._catalog.ramps
        everything = Schedule(Plan.of(0, range(ramps), [0.0] * ramps), ramps)
        for size in sorted({1, 2, self.spec.serving.max_batch}):
            inputs = {spec.name: warm_array(spec, size) for spec in self.dataplane.inputs}
            try:
                warm_up(self._engine, inputs, [everything, self.serving.schedule])
                self._compact.parting_ms = partings(self._engine, inputs, everything)  # the last is the largest
            except Exception as error:
                raise InvalidSetup(f"the model raises on a batch of {size}: {words_of(error)}") from error

    def start(self, keep: Keep) -> None:
        """Be ready for requests. keep: runs a part without which the worker cannot go on. Raises InvalidKubeconfig."""
        self._source = plan_source(self._settings, self.document, self._follow_wishes)
        if url := self._settings.redis_url:
            self._heartbeat = Heartbeat(url, self.document.model.key, self._settings.name, self._beat)
        self.meter.describe(__version__, self._device.type, self._catalog.digest)
        self.meter.want(self.spec.serving.slo)
        self._reporter.start()
        self._thread.add(self.serving)
        if self._source is not None:
            self._tasks.append(keep(follow(self._source, self.keeper, self.apply, self._refused)))
        if self._heartbeat is not None:
            self._tasks.append(keep(self._heartbeat.run()))
        self._tasks.append(keep(self.batcher.pressure.watch()))
        self.dataplane.accepting = True

    async def answered(self, within_s: float) -> bool:
        """Take no request any more, and wait for the answers of those that were; whether all had theirs in time."""
        self.dataplane.accepting = False
        await until(lambda: not self.dataplane.in_flight or not self._alive(), within_s)
        unanswered = self.dataplane.in_flight
        if unanswered:
            log.error("requests were left unanswered at the end of draining", model=self.name, requests=unanswered)
        self.close(NotReady(f"model {self.name!r} is stopping"))
        return not unanswered

    def close(self, error: NotReady) -> None:
        """Whoever waits gets `error`."""
        for request in self.batcher.close(error):
            request.fail(error)

    async def end(self, within_s: float, *, replaced: bool = False) -> None:
        """Send the feedback of what was answered, and let go of everything. After `answered`.

        replaced: another version of the model has taken over in this worker.
        """
        await self._stop_tasks()
        if self._arranging is not None:
            await self._arranging
        await asyncio.to_thread(self.serving.over.wait, within_s)
        await asyncio.to_thread(self._reporter.stop, within_s)
        if self._source is not None:
            await self._source.close()
        if self._heartbeat is not None:
            await self._heartbeat.close(keep=replaced)
        self.measure(ready=False)
        if not replaced:
            self.meter.forget()

    def release(self) -> None:
        """Let go of the model itself, and of everything else. After `end`.

        The parts hold each other, and are older than the last look of the collector (`gc.freeze`), which would never
        find that nobody else holds them.
        """
        self.__dict__.clear()

    async def _stop_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):  # whoever keeps it has told of it
                await task

    def apply(self, plan: Plan) -> None:
        """Put a plan in force. Event loop only."""
        self.serving.schedule = Schedule(plan, self._catalog.ramps)
        if self._arranging is None or self._arranging.done():
            self._arranging = asyncio.create_task(self._arrange())
        if self._heartbeat is not None:
            self._heartbeat.hurry()

    async def _arrange(self) -> None:
        """Let the model get ready for the exits of the plan in force, beside the passes; those are right without it."""
        while (schedule := self.serving.schedule) is not self._arranged:
            self._arranged = schedule
            try:
                await asyncio.to_thread(self._engine.arrange, schedule)
            except Exception as error:  # noqa: BLE001 - a runtime's own classes; told, and what runs now goes on
                log.warning("the model is not cut at the open exits, answers leave later", error=words_of(error))

    def _passed(self, passes: Sequence[Pass]) -> None:
        self.meter.passed(passes, traces_of if self._traces is not None else None)
        for done in passes:
            self.dataplane.statistics.passed(done)
            if self._traces is not None:
                self._traces.passed(done)

    def _refused(self, reason: str) -> None:
        self.meter.refused(reason)
        if self._heartbeat is not None:
            self._heartbeat.hurry()

    def _follow_wishes(self, wishes: Wishes) -> None:
        """Take what changed in the spec and needs no restart. Event loop only."""
        self.guard.keep(Promise.of(wishes.budget, wishes.checked_share), self._sharers(wishes.replicas))
        self._budget = wishes.budget.accuracy_loss
        self.meter.want(wishes.slo)
        self.batcher.policy.want(wishes.slo.latency_ms / 1e3 if wishes.slo else math.inf)
        self.dataplane.objective_s = self._limit_s(wishes.slo)
        self.keeper.ramp_budget = wishes.budget.ramp_overhead
        self._reporter.shadow_share = wishes.adaptation.shadow_share

    def _sharers(self, replicas: int) -> int:
        """Among how many workers the answers of the model, and so its budget, are shared."""
        return self._settings.workers or max(replicas, 1)

    def _limit_s(self, slo: Slo | None) -> float | None:
        """After which an answer is of no use: the objective, under the policy that keeps to it."""
        return slo.latency_ms / 1e3 if slo and self.spec.serving.batching.policy == "deadline" else None

    def _well(self) -> bool:
        """Whether the last pass, or a trial since, was fine."""
        return self._alive() and not self.serving.health.unwell

    @property
    def dropped(self) -> int:
        """Feedback entries that were given up."""
        return self._reporter.dropped + (self._sender.dropped if self._sender is not None else 0)

    def _beat(self) -> Beat:
        refused = self.keeper.refused
        return Beat(
            worker=self._settings.name,
            epoch=self._epoch,
            revision=self.keeper.plan.revision,
            guarded=self.serving.guarded,
            in_flight=self.dataplane.in_flight,
            served=self.serving.served,
            dropped=self.dropped,
            refused=str(refused)[:REFUSED_CHARS] if refused is not None else "",
            refused_revision=refused.revision if refused is not None else 0,
        )

    def measure(self, *, ready: bool) -> None:
        """Bring the metrics that are kept elsewhere up to date. ready: whether requests should be sent here."""
        gauges = {
            "apparate_guard_closed": float(self.serving.guarded),
            "apparate_guard_spent": float(self.serving.spent),
            "apparate_accuracy_budget_ratio": self._budget,
            "apparate_full_share_ratio": self.guard.share,
            "apparate_queue_limit_requests": self.spec.serving.max_queue,
            "apparate_batch_limit_requests": self.batcher.policy.most,
            "apparate_plan_revision": self.keeper.plan.revision,
            "apparate_in_flight_requests": self.dataplane.in_flight,
            "apparate_waiting_requests": self.batcher.waiting,
            "apparate_ready": float(ready),
        }
        counters = {
            "apparate_guard_alarms": self.guard.alarms,
            "apparate_feedback_sent": self._sender.sent if self._sender is not None else 0,
            "apparate_feedback_dropped": self.dropped,
        }
        if (cache := self.cache) is not None:
            gauges["apparate_cache_bytes"] = cache.bytes
            counters |= {"apparate_cache_hits": cache.hits, "apparate_cache_misses": cache.misses}
        self.meter.set(gauges, counters)
        self.meter.pressed(self.batcher)


async def until(reached: Callable[[], object], within_s: float) -> None:
    """Return when `reached`, or when the time is up."""
    give_up = time.monotonic() + within_s
    while not reached() and time.monotonic() < give_up:  # noqa: ASYNC110 - things of several threads and libraries
        await asyncio.sleep(0.005)


def warm_array(spec: TensorSpec, items: int) -> Array:
    """A harmless input: zeros for floats, ones for everything else (a token, an unmasked place)."""
    shape = [items, *(min(spec.max_size, WARM_SIZE) if size == -1 else size for size in spec.shape)]
    if spec.datatype == BYTES:
        return np.ones((*shape, min(spec.max_size, WARM_SIZE)), np.uint8)
    dtype = DTYPES[spec.datatype]
    return np.zeros(shape, dtype) if spec.datatype in ("FP16", "FP32", "FP64", "BF16") else np.ones(shape, dtype)
