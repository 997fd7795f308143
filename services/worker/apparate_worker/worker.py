"""One worker put together: which object gets which, and the order of starting and draining."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import torch

from apparate import __version__
from apparate.contract.document import Document
from apparate.contract.resource import TensorSpec
from apparate.contract.stream import feedback_key
from apparate.plan import Plan
from apparate.service.telemetry import get_logger
from apparate_worker import gpu
from apparate_worker.batching import Batcher
from apparate_worker.device import DeviceThread
from apparate_worker.engine import Array, Engine, Schedule, link_to, warm_up
from apparate_worker.errors import InvalidSetup, NotReady, words_of
from apparate_worker.feedback import Identity, RedisSender, Reporter
from apparate_worker.guard import WorkerGuard
from apparate_worker.heartbeat import Beat, Heartbeat
from apparate_worker.liveness import Stalled, Watch, longest_pause_s
from apparate_worker.metering import Meter
from apparate_worker.model.store import PreparedModel
from apparate_worker.objects import Wishes, plan_source
from apparate_worker.passes import Pass
from apparate_worker.plain import remaining_table
from apparate_worker.plans import PlanKeeper, follow
from apparate_worker.protocol.dataplane import Dataplane
from apparate_worker.protocol.grpc import GrpcFace, grpc_server
from apparate_worker.protocol.http import HttpFace, http_server
from apparate_worker.protocol.models import Models, State
from apparate_worker.protocol.tensors import BYTES, DTYPES
from apparate_worker.serving import TAIL_BATCHES, Serving
from apparate_worker.settings import WorkerSettings

log = get_logger(__name__)
LISTEN_S = 60.0  # longest time that the HTTP server may take to listen
FLUSH_S = 2.0  # longest time that feedback may take to leave at the end
ON_THEIR_WAY_S = 0.05  # for calls that were sent before their clients heard that it stops
REFUSED_CHARS = 300  # of why a plan is refused, in a heartbeat and from there in the status
EARLY_SHADOW_COST = 0.1  # share of the passes' time that shadows may take while no exit has been open
WARM_SIZE = 32  # size of dimensions that vary, when warming up


def device_of(wanted: str) -> torch.device:
    """The device that `spec.serving.device` names. Raises InvalidSetup."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidSetup(f"spec.serving.device is {wanted}, this machine has no usable GPU")
    return torch.device(wanted)


class Worker:
    """Serves one prepared model. `start`, then `drain`; make it in the running event loop."""

    def __init__(
        self, document: Document, prepared: PreparedModel, settings: WorkerSettings, device: torch.device
    ) -> None:
        spec, catalog = document.model.spec, prepared.catalog
        self._settings, self._spec, self._device = settings, spec, device
        self._loop = asyncio.get_running_loop()
        self._ramps = catalog.ramps
        self._epoch = int(time.time() * 1000)
        self.failed = asyncio.Event()
        """Set when the worker cannot go on; `lost` says why."""
        self.lost = ""
        key = document.model.key
        meta = document.model.metadata
        self._meter = Meter(meta.namespace, meta.name, catalog, spec.serving.max_batch)
        self._meter.describe(__version__, device.type, catalog.digest)
        self._meter.want(spec.serving.slo)
        self._budget = spec.budget.accuracy_loss
        self._engine = Engine(prepared.model, prepared.heads, link_to(device))
        self.device_thread = DeviceThread(loop=self._loop, on_fatal=self._device_lost)
        self._batcher = Batcher(
            max_batch=spec.serving.max_batch,
            max_delay_s=spec.serving.max_delay_ms / 1e3,
            max_queue=spec.serving.max_queue,
        )
        url = settings.redis_url
        self._sender = RedisSender(url, feedback_key(key)) if url else None
        self._reporter = Reporter(
            Identity(key, settings.name, self._epoch, catalog.digest),
            [head.on_host() for head in prepared.heads],
            shadow_share=spec.adaptation.shadow_share,
            early_share=EARLY_SHADOW_COST / max(catalog.overhead_share(range(catalog.ramps)), EARLY_SHADOW_COST),
            sender=self._sender,
            on_pass=self._passed,
        )
        self._guard = WorkerGuard(spec.budget.accuracy_loss, catalog.ramps, max(spec.serving.replicas, 1))
        self._keeper = PlanKeeper(catalog, spec.budget.ramp_overhead)
        remaining = remaining_table(catalog, TAIL_BATCHES * spec.serving.max_batch).tolist()
        self.serving = Serving(
            engine=self._engine,
            batcher=self._batcher,
            inputs=prepared.inputs,
            schedule=Schedule(self._keeper.plan, catalog.ramps),
            guard=self._guard,
            reports=self._reporter,
            loop=self._loop,
            max_batch=spec.serving.max_batch,
            remaining_ms=lambda ramp, rows: remaining[rows][ramp],
            threads=spec.serving.threads,
            trial={spec.name: warm_array(spec, 1) for spec in prepared.inputs},
        )
        self.device_thread.add(self.serving)
        longest_s = spec.serving.stall_seconds or longest_pause_s(catalog, spec.serving.max_batch)
        self._watch = Watch(lambda: self.device_thread.beats, longest_s)
        self.dataplane = Dataplane(
            name=meta.name,
            inputs=prepared.inputs,
            output=prepared.output,
            classes=prepared.classes,
            layers=catalog.layers,
            batcher=self._batcher,
            queue_timeout_s=spec.serving.timeout_ms / 1e3,
            alive=self._well,
            count=self._meter.answered,
        )
        self.models = Models(self._alive, self._meter.answered)
        self.models.declare(meta.name)
        self.models.note(meta.name, self.dataplane.version, State.LOADING)
        self._source = plan_source(settings, document, self._follow_wishes)
        self._heartbeat = Heartbeat(url, key, settings.name, self._beat) if url else None
        protocols = spec.serving.protocols
        self._http_face = HttpFace(self.models, max_body_bytes=protocols.http.max_body_bytes, metrics=self._metrics)
        self._http = http_server(self._http_face)
        self._grpc_face = GrpcFace(self.models)
        self._tasks: list[asyncio.Task[None]] = []
        self._http_task: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, str]:
        """Warm up, listen, take requests; the addresses (HTTP, gRPC). Raises InvalidSetup."""
        protocols, settings = self._spec.serving.protocols, self._settings
        http_port = protocols.http.port if settings.http_port is None else settings.http_port
        grpc_port = protocols.grpc.port if settings.grpc_port is None else settings.grpc_port
        listening = _listen(settings.host, http_port)
        self._grpc = grpc_server(self._grpc_face, protocols.grpc.max_message_bytes)
        try:
            grpc_address = _address(settings.host, _add_port(self._grpc, settings.host, grpc_port))
            await asyncio.to_thread(self._warm_up)
        except InvalidSetup:
            listening.close()
            raise
        self._reporter.start()
        self.device_thread.start()
        self._keep(self._watch.run(self._stalled))
        if self._source is not None:
            self._keep(follow(self._source, self._keeper, self._apply, self._refused))
        if self._heartbeat is not None:
            self._keep(self._heartbeat.run())
        await self._grpc.start()
        self._http_task = asyncio.create_task(self._http.serve([listening]))
        self._http_task.add_done_callback(self._http_ended)
        await _until(lambda: self._http.started or self._http_task is None or self._http_task.done(), LISTEN_S)
        self.dataplane.accepting = self.models.announced = True
        self.models.serve(self.dataplane)
        return _address(settings.host, listening.getsockname()[1]), grpc_address

    async def drain(self, grace_s: float) -> bool:
        """Stop: tell clients, answer what was accepted, send feedback; whether every request got its answer in time."""
        give_up = time.monotonic() + self._spec.serving.drain_seconds
        self.models.announced = False
        self._http_face.draining = True
        if self.models.live():
            await asyncio.sleep(min(grace_s, self._spec.serving.drain_seconds))
        parting = asyncio.create_task(self._part(max(0.0, give_up - time.monotonic())))
        await asyncio.wait({parting}, timeout=ON_THEIR_WAY_S)  # it ends with the last call that is under way
        self.dataplane.accepting = False
        await _until(lambda: not self.dataplane.in_flight or not self.models.live(), give_up - time.monotonic())
        unanswered = self.dataplane.in_flight
        for request in self._batcher.close(NotReady("the worker is stopping")):
            request.fail(NotReady("the worker is stopping"))
        await self._close(max(0.1, min(FLUSH_S, give_up - time.monotonic())))
        await parting
        if unanswered:
            log.error("requests were left unanswered at the end of draining", requests=unanswered)
        return not unanswered

    async def _part(self, within_s: float) -> None:
        """Send clients with a connection elsewhere before anything on it is refused; calls under way are answered."""
        for connection in list(self._http.server_state.connections):
            connection.shutdown()  # closes when it is idle, else after its answer
        await self._grpc.stop(within_s)

    async def _close(self, within_s: float) -> None:
        self._http.should_exit = True
        await self._grpc.stop(0.1)
        if self._http_task is not None:
            await asyncio.wait({self._http_task}, timeout=within_s)
        await self.device_thread.ended(within_s)
        await asyncio.to_thread(self._reporter.stop, within_s)
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):  # `_ended` has told of it
                await task
        if self._source is not None:
            await self._source.close()
        if self._heartbeat is not None:
            await self._heartbeat.close()

    def _warm_up(self) -> None:
        torch.set_num_threads(self._spec.serving.threads)
        everything = Schedule(Plan.of(0, range(self._ramps), [0.0] * self._ramps), self._ramps)
        for size in sorted({1, 2, self._spec.serving.max_batch}):
            inputs = {spec.name: warm_array(spec, size) for spec in self.dataplane.inputs}
            try:
                warm_up(self._engine, inputs, [everything, self.serving.schedule])
            except Exception as error:
                raise InvalidSetup(f"the model raises on a batch of {size}: {words_of(error)}") from error

    def _passed(self, done: Pass) -> None:
        self._meter.passed(done)
        self.dataplane.statistics.passed(done)

    def _apply(self, plan: Plan) -> None:
        self.serving.schedule = Schedule(plan, self._ramps)
        if self._heartbeat is not None:
            self._heartbeat.hurry()

    def _refused(self, reason: str) -> None:
        self._meter.refused(reason)
        if self._heartbeat is not None:
            self._heartbeat.hurry()

    def _follow_wishes(self, wishes: Wishes) -> None:
        """Take what changed in the spec and needs no restart. Event loop only."""
        self._guard.keep(wishes.budget.accuracy_loss, max(wishes.replicas, 1))
        self._budget = wishes.budget.accuracy_loss
        self._meter.want(wishes.slo)
        self._keeper.ramp_budget = wishes.budget.ramp_overhead
        self._reporter.shadow_share = wishes.adaptation.shadow_share

    def _alive(self) -> bool:
        return self.device_thread.alive and not self._watch.stalled

    def _well(self) -> bool:
        """Whether the last pass, or a trial since, was fine."""
        return self._alive() and not self.serving.health.unwell

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until draining ends; without it the worker cannot go on."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a part of the worker failed", error=str(error), exc_info=error)
            self._fail(f"a part of the worker failed: {type(error).__name__}: {error}")

    def _http_ended(self, task: asyncio.Task[None]) -> None:
        if not self._http.should_exit:
            self._fail("the HTTP server ended by itself")

    def _device_lost(self, error: BaseException) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self._loop.call_soon_threadsafe(self._fail, f"the worker lost its device: {words_of(error)}")

    def _stalled(self, error: Stalled) -> None:
        if self.device_thread.alive:
            self.device_thread.give_up(NotReady(str(error)))
            self._fail(str(error))

    def _fail(self, why: str) -> None:
        """Nothing will be answered any more: say so to whoever waits, and to who owns the process."""
        gone = NotReady(why)
        for request in self._batcher.close(gone):
            request.fail(gone)
        self.lost = self.lost or why
        self.failed.set()

    def _dropped(self) -> int:
        return self._reporter.dropped + (self._sender.dropped if self._sender is not None else 0)

    def _beat(self) -> Beat:
        refused = self._keeper.refused
        return Beat(
            worker=self._settings.name,
            epoch=self._epoch,
            revision=self._keeper.plan.revision,
            guarded=self.serving.guarded,
            in_flight=self.dataplane.in_flight,
            served=self.serving.served,
            dropped=self._dropped(),
            refused=str(refused)[:REFUSED_CHARS] if refused is not None else "",
            refused_revision=refused.revision if refused is not None else 0,
        )

    def _metrics(self) -> bytes:
        gauges = {
            "apparate_guard_closed": float(self.serving.guarded),
            "apparate_guard_spent": float(self.serving.spent),
            "apparate_accuracy_budget_ratio": self._budget,
            "apparate_queue_limit_requests": self._spec.serving.max_queue,
            "apparate_batch_limit_requests": self._spec.serving.max_batch,
            "apparate_plan_revision": self._keeper.plan.revision,
            "apparate_in_flight_requests": self.dataplane.in_flight,
            "apparate_waiting_requests": self._batcher.waiting,
            "apparate_ready": float(self.models.ready()),
        }
        counters = {
            "apparate_guard_alarms": self._guard.alarms,
            "apparate_feedback_sent": self._sender.sent if self._sender is not None else 0,
            "apparate_feedback_dropped": self._dropped(),
        }
        return self._meter.render(gauges, counters, gpu.memory(self._device))


async def _until(reached: Callable[[], object], within_s: float) -> None:
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


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(
        socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by connections. asyncio sets it only on sockets that name their protocol, and without it the second
        # packet of an answer waits 40 ms for the client's delayed acknowledgement of the first.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise InvalidSetup(_cannot_listen("HTTP", host, port, error.strerror or str(error))) from error
    return listening


def _add_port(server: object, host: str, port: int) -> int:
    try:
        return int(server.add_insecure_port(_address(host, port)))  # type: ignore[attr-defined]
    except RuntimeError as error:
        why = str(error).partition(";")[0]  # then comes how to debug gRPC
        raise InvalidSetup(_cannot_listen("gRPC", host, port, why)) from error


def _cannot_listen(protocol: str, host: str, port: int, why: str) -> str:
    field = f"spec.serving.protocols.{protocol.lower()}.port"
    return f"cannot listen for {protocol} on {host} port {port}: {why}; {field} asks for another, 0 for a free one"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
