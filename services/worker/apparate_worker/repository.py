"""Models come, go and are replaced while others are served: the protocol's model repository.

A load reads the document and the prepared folder anew, checks memory, warms up, and only then takes over: requests in
hand stay with the version that has them, which sends its feedback before it ends. A load that fails changes nothing.
One change at a time: each needs memory that the one before may be about to give back.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import torch

from apparate.contract.document import Document, InvalidDocument
from apparate.service.kube import InvalidKubeconfig, KubeError
from apparate.service.telemetry import get_logger
from apparate_worker.documents import document_of
from apparate_worker.errors import InvalidSetup, LoadFailed, NotReady, UnknownModel
from apparate_worker.model.errors import ModelError
from apparate_worker.model.store import PreparedModel, load_prepared
from apparate_worker.protocol.models import State
from apparate_worker.served import Declared, Served
from apparate_worker.settings import WorkerSettings
from apparate_worker.worker import Worker, device_of

EXPECTED = (InvalidDocument, InvalidKubeconfig, InvalidSetup, KubeError, ModelError, OSError)
Load = Callable[[Document, torch.device], PreparedModel]
T = TypeVar("T")
log = get_logger(__name__)


class Repository:
    """Changes what a started worker serves. Event loop only.

    documents: everything that may be loaded, read anew. load: the prepared model of a document; both may block.
    """

    def __init__(
        self, worker: Worker, settings: WorkerSettings, documents: Callable[[], list[Document]], load: Load
    ) -> None:
        self._worker, self._settings, self._documents, self._load = worker, settings, documents, load
        self._loads = defaultdict(int, dict.fromkeys(worker.served, 1))
        """How many versions of each model there have been."""
        self._one = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()

    async def load(self, name: str) -> None:
        """Load a model, or the newest version of one that is served. Raises LoadFailed, UnknownModel, NotReady."""
        await self._whole(self._replace(name))

    async def unload(self, name: str) -> None:
        """Answer what was accepted for a model, and let go of it. Raises UnknownModel and NotReady."""
        await self._whole(self._remove(name))

    async def settled(self) -> None:
        """Wait for the versions that were taken over from."""
        await asyncio.gather(*self._leaving)

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which goes on when its caller goes away: half a change is worse than one not seen."""
        return await asyncio.shield(asyncio.create_task(work))

    async def _replace(self, name: str) -> None:
        async with self._one:
            version = str(self._loads[name] + 1)
            fresh = await self._fresh(name, version)
            self._loads[name] += 1
            before = self._worker.serve(fresh)
            log.info("model loaded", model=name, version=version, replaces=before and before.dataplane.version)
            if before is not None:
                task = asyncio.create_task(self._let_go(before, "replaced"))
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)

    async def _fresh(self, name: str, version: str) -> Served:
        """A version that is ready to take over. Raises LoadFailed."""
        models, fresh = self._worker.models, None
        if not models.announced:
            raise NotReady("the worker is starting or stopping")
        document = await asyncio.to_thread(self._find, name)
        models.note(name, version, State.LOADING)
        try:
            device = device_of(document.model.spec.serving.device)
            prepared = await asyncio.to_thread(self._load, document, device)
            fresh = self._worker.make(Declared(document, prepared), version)
            await asyncio.to_thread(fresh.warm_up)
            if not models.announced:
                raise NotReady("the worker is stopping")
        except BaseException as error:
            models.note(name, version, State.UNAVAILABLE, str(error) or type(error).__name__)
            if fresh is not None and name not in self._worker.served:
                fresh.meter.forget()
            if isinstance(error, EXPECTED):
                log.warning("model cannot be loaded", model=name, version=version, error=str(error))
                raise LoadFailed(f"model {name!r} cannot be loaded: {error}") from error
            raise
        return fresh

    def _find(self, name: str) -> Document:
        """Blocks. Raises UnknownModel and LoadFailed."""
        try:
            documents = self._documents()
        except EXPECTED as error:
            raise LoadFailed(f"model {name!r:.80} cannot be loaded: {error}") from error
        try:
            return document_of(name, documents, self._settings)
        except InvalidSetup as error:
            raise UnknownModel(str(error)) from error

    async def _remove(self, name: str) -> None:
        async with self._one:
            if not self._worker.models.announced:
                raise NotReady("the worker is starting or stopping")
            self._worker.models.find(name)
            self._worker.models.withdraw(name)
            await self._let_go(self._worker.served.pop(name), "unloaded")

    async def _let_go(self, one: Served, why: str) -> None:
        """Answer what it has, send its feedback, free its memory."""
        plane = one.dataplane
        await self._worker.end(one, replaced=why == "replaced")
        self._worker.models.gone(plane, why)
        log.info("model gone", model=plane.name, version=plane.version, why=why)


def load_document(document: Document, device: torch.device, settings: WorkerSettings) -> PreparedModel:
    """What was prepared for a document. Blocks. Raises ModelError and OSError."""
    return load_prepared(settings.prepared or document.prepared, document, device)
