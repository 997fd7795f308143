"""The controller on Kubernetes: clients, leadership and models, put together."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

from redis.asyncio import Redis

from apparate.catalog import RampCatalog
from apparate.contract.document import Document
from apparate.service.kube import CONNECTIONS, KubeClient
from apparate.service.lease import Leadership
from apparate.service.redis_client import close, connect
from apparate.service.telemetry import Telemetry
from apparate.service.tracing import Tracing
from apparate_controller.access import Access
from apparate_controller.loop import ModelLoop
from apparate_controller.objects import ObjectModels
from apparate_controller.observe import ModelObserver, Observers
from apparate_controller.ports import Ports
from apparate_controller.reporting import StatusReporter
from apparate_controller.session import ModelSession
from apparate_controller.settings import ControllerSettings
from apparate_controller.sinks.status import StatusSink
from apparate_controller.sources.heartbeats import RedisHeartbeats
from apparate_controller.sources.redis_stream import RedisFeedbackSource


class ClusterController:
    """Adapts the models of a cluster while this process leads. `run` until `stop`."""

    def __init__(
        self,
        settings: ControllerSettings,
        client: KubeClient,
        commands: Redis,
        telemetry: Telemetry,
        port: int,
        traces: Tracing | None = None,
    ) -> None:
        self._settings, self._commands, self._telemetry, self._traces = settings, commands, telemetry, traces
        self.access = Access(
            lambda verb, status: telemetry("apparate_controller_kubernetes_errors", verb=verb, code=str(status)).inc()
        )
        client.observe = self.access
        self._threads = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="kubernetes")
        self.models = ObjectModels(
            client,
            settings.namespaces,
            self._new_loop,
            retry_s=settings.retry_s,
            threads=self._threads,
            wrote=lambda namespace, model: telemetry("apparate_status_writes", namespace=namespace, model=model).inc(),
            gone=lambda namespace, model: telemetry.forget(namespace=namespace, model=model),
        )
        self._leadership: Leadership | None = None
        if settings.lease_namespace:
            identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
            where = settings.lease_namespace, settings.lease_name
            host = f"[{settings.address}]" if ":" in settings.address else settings.address
            address = f"{host}:{port}" if host else ""
            self._leadership = Leadership(client, *where, identity, address=address, threads=self._threads)
        self._leads = self._leadership is None
        self._stopping = asyncio.Event()

    def standby(self) -> str:
        """Why another process adapts the models; empty when this one does."""
        if self._leads:
            return ""
        holder = self._leadership.holder if self._leadership is not None else ""
        return f"standby: {holder} leads" if holder else "standby: nobody is known to lead"

    def leader(self) -> str:
        """Where the process that adapts the models answers, as host:port; empty when that is not known."""
        return self._leadership.leader_address if self._leadership is not None else ""

    def stop(self) -> None:
        """Make `run` end soon."""
        self._stopping.set()
        self.models.stop()

    async def run(self) -> None:
        """Wait for the leadership, adapt while it lasts, and so on until `stop`."""
        leading = self._telemetry("apparate_leader")
        try:
            while not self._stopping.is_set():
                leading.set(self._leads)
                if self._leadership is None:
                    await self.models.run()
                    continue
                if not await self._unless_stopped(self._leadership.acquire()):
                    break
                self._leads = True
                leading.set(1)
                await self._lead(self._leadership)
        finally:
            self._threads.shutdown(wait=False)

    async def _lead(self, leadership: Leadership) -> None:
        holding = asyncio.create_task(leadership.hold())
        adapting = asyncio.create_task(self.models.run())
        if self._stopping.is_set():
            self.models.stop()
        try:
            await asyncio.wait({holding, adapting}, return_when=asyncio.FIRST_COMPLETED)
            lost = holding.done()
            self.models.stop()
            await adapting
        finally:
            self._leads = False
            holding.cancel()
            await asyncio.gather(holding, adapting, return_exceptions=True)
        if not lost:
            await leadership.release()

    async def _unless_stopped(self, work: object) -> bool:
        """Whether the awaitable `work` ended before `stop`."""
        working = asyncio.ensure_future(work)  # type: ignore[call-overload]
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        ended = bool(working.done())
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)
        return ended

    @contextlib.asynccontextmanager
    async def _new_loop(
        self, document: Document, catalog: RampCatalog, sink: StatusSink, reporter: StatusReporter
    ) -> AsyncIterator[ModelLoop]:
        key, spec, settings = document.model.key, document.model.spec, self._settings
        reader = connect(settings.redis_url, block_s=settings.block_s)
        source = RedisFeedbackSource(reader, self._commands, key, consumer=settings.name, block_s=settings.block_s)
        observer = Observers(ModelObserver(self._telemetry, document.model, catalog, self._traces), reporter)
        ports = Ports(source, sink, RedisHeartbeats(self._commands, key), observer)
        try:
            yield ModelLoop(key, catalog, lambda plan: ModelSession(catalog, spec, plan), ports)
        finally:
            await close(reader)
