"""The worker process put together: its models, its faces, and the order of starting and draining."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import torch

from apparate.contract.metrics import WORKER
from apparate.service.telemetry import Telemetry, get_logger
from apparate.service.tracing import Tracing
from apparate_worker import gpu
from apparate_worker.device import DeviceThread
from apparate_worker.errors import InvalidSetup, NotReady, words_of
from apparate_worker.liveness import Stalled, Watch
from apparate_worker.metering import count_unknown
from apparate_worker.protocol.grpc import GrpcFace, grpc_server
from apparate_worker.protocol.http import HttpFace, http_server
from apparate_worker.protocol.models import Models, State
from apparate_worker.served import Declared, Served, until
from apparate_worker.settings import WorkerSettings
from apparate_worker.tracing import RequestTraces

log = get_logger(__name__)
LISTEN_S = 60.0  # longest time that the HTTP server may take to listen
FLUSH_S = 2.0  # longest time that feedback may take to leave at the end
ON_THEIR_WAY_S = 0.05  # for calls that were sent before their clients heard that it stops


def device_of(wanted: str) -> torch.device:
    """The device that `spec.serving.device` names. Raises InvalidSetup."""
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidSetup(f"spec.serving.device is {wanted}, this machine has no usable GPU")
    return torch.device(wanted)


class Worker:
    """Serves prepared models, one device for all. `start`, then `drain`; make it in the running event loop.

    Ports and limits of the faces are those of the first model, where the settings say nothing else.
    """

    def __init__(
        self,
        declared: Sequence[Declared],
        settings: WorkerSettings,
        device: torch.device,
        tracing: Tracing | None = None,
    ) -> None:
        self._settings, self._device = settings, device
        self._traces = RequestTraces(tracing) if tracing is not None else None
        self._loop = asyncio.get_running_loop()
        self.failed = asyncio.Event()
        """Set when the worker cannot go on; `lost` says why."""
        self.lost = ""
        self._telemetry = Telemetry(WORKER)
        self.device_thread = DeviceThread(loop=self._loop, on_fatal=self._device_lost)
        self._watch = Watch(lambda: self.device_thread.beats, 0.0)
        self.models = Models(self._alive, partial(count_unknown, self._telemetry))
        self.served = {one.name: self.make(one) for one in declared}
        """What answers now, or will once it has started, by the model's name."""
        for one in self.served.values():
            self.models.declare(one.name)
            self.models.note(one.name, one.dataplane.version, State.LOADING)
        self._protocols = declared[0].document.model.spec.serving.protocols
        self._http_face = HttpFace(
            self.models,
            max_body_bytes=self._protocols.http.max_body_bytes,
            metrics=self._metrics,
            traces=self._traces,
        )
        self._http = http_server(self._http_face)
        self._grpc_face = GrpcFace(self.models, self._traces)
        self._leaving: set[Served] = set()
        """Versions that finish what they have."""
        self._tasks: list[asyncio.Task[None]] = []
        self._http_task: asyncio.Task[None] | None = None

    def make(self, declared: Declared, version: str = "1") -> Served:
        """A model, or another version of one, that is not served yet."""
        return Served(
            declared,
            self._settings,
            self._device,
            self.device_thread,
            self._telemetry,
            alive=self._alive,
            version=version,
            traces=self._traces,
        )

    def serve(self, one: Served) -> Served | None:
        """Give requests to this version from now on; the one that it takes over from. Raises InvalidKubeconfig."""
        before, self.served[one.name] = self.served.get(one.name), one
        self._open(one)
        return before

    def _open(self, one: Served) -> None:
        one.start(self._keep)
        self._watch.longest_s = max(each.longest_s for each in self.served.values())
        self.models.serve(one.dataplane)

    async def end(self, one: Served, *, replaced: bool) -> None:
        """Answer what a version has that gets no more requests, send its feedback and free its memory."""
        self._leaving.add(one)
        await one.answered(one.spec.serving.drain_seconds)
        await one.end(FLUSH_S, replaced=replaced)
        self._leaving.discard(one)
        one.release()

    async def start(self) -> tuple[str, str]:
        """Warm up, listen, take requests; the addresses (HTTP, gRPC). Raises InvalidSetup."""
        protocols, settings = self._protocols, self._settings
        http_port = protocols.http.port if settings.http_port is None else settings.http_port
        grpc_port = protocols.grpc.port if settings.grpc_port is None else settings.grpc_port
        listening = _listen(settings.host, http_port)
        self._grpc = grpc_server(self._grpc_face, protocols.grpc.max_message_bytes)
        try:
            grpc_address = _address(settings.host, _add_port(self._grpc, settings.host, grpc_port))
            for one in self.served.values():
                await asyncio.to_thread(one.warm_up)
        except InvalidSetup:
            listening.close()
            raise
        self.device_thread.start()
        for one in self.served.values():
            self._open(one)
        self._keep(self._watch.run(self._stalled))
        await self._grpc.start()
        self._http_task = asyncio.create_task(self._http.serve([listening]))
        self._http_task.add_done_callback(self._http_ended)
        await until(lambda: self._http.started or self._http_task is None or self._http_task.done(), LISTEN_S)
        self.models.announced = True
        return _address(settings.host, listening.getsockname()[1]), grpc_address

    async def drain(self, grace_s: float) -> bool:
        """Stop: tell clients, answer what was accepted, send feedback; whether every request got its answer in time."""
        serving = list(self.served.values())
        drain_s = max((one.spec.serving.drain_seconds for one in serving), default=0.0)
        give_up = time.monotonic() + drain_s
        self.models.announced = False
        self._http_face.draining = True
        if self.models.live():
            await asyncio.sleep(min(grace_s, drain_s))
        parting = asyncio.create_task(self._part(max(0.0, give_up - time.monotonic())))
        await asyncio.wait({parting}, timeout=ON_THEIR_WAY_S)  # it ends with the last call that is under way
        answered = await asyncio.gather(*(one.answered(give_up - time.monotonic()) for one in serving))
        await self._close(max(0.1, min(FLUSH_S, give_up - time.monotonic())), serving)
        await parting
        await until(lambda: not self._leaving, give_up - time.monotonic())
        return all(answered)

    async def _part(self, within_s: float) -> None:
        """Send clients with a connection elsewhere before anything on it is refused; calls under way are answered."""
        for connection in list(self._http.server_state.connections):
            connection.shutdown()  # closes when it is idle, else after its answer
        await self._grpc.stop(within_s)

    async def _close(self, within_s: float, serving: Sequence[Served]) -> None:
        self._http.should_exit = True
        await self._grpc.stop(0.1)
        if self._http_task is not None:
            await asyncio.wait({self._http_task}, timeout=within_s)
        await self.device_thread.ended(within_s)
        await asyncio.gather(*(one.end(within_s) for one in serving))
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError, Exception):  # `_ended` has told of it
                await task

    def _alive(self) -> bool:
        return self.device_thread.alive and not self._watch.stalled

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until draining ends; without it the worker cannot go on."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
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
        for one in (*self.served.values(), *self._leaving):
            one.close(NotReady(why))
        self.lost = self.lost or why
        self.failed.set()

    def _metrics(self, accept: str) -> tuple[bytes, str]:
        ready = self.models.ready()
        for one in self.served.values():
            one.measure(ready=ready)
        for one in list(self.served.values())[:1]:
            one.meter.gpu(gpu.memory(self._device))
        return self._telemetry.render_for(accept)


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
