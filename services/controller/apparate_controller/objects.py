"""Which models are adapted on Kubernetes: each EarlyExitModel that has a catalog, with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from apparate.catalog import InvalidCatalog, RampCatalog
from apparate.contract.document import Document
from apparate.contract.pause import said_by
from apparate.contract.resource import Adaptation, Budget, EarlyExitModel
from apparate.contract.shape import problem_of
from apparate.service.kube import Json, KubeClient, KubeError, models_path, version_of
from apparate.service.telemetry import get_logger
from apparate.service.watch import WATCH_S, Listed, Watch
from apparate_controller.errors import CatalogNotReady
from apparate_controller.loop import ModelLoop
from apparate_controller.models import Model, find
from apparate_controller.reporting import StatusReporter
from apparate_controller.sinks.status import StatusSink

OBSERVE_S = 30.0  # between two looks at what a plan does, when it does not change
CATALOG_KEY = "catalog.json"
NOWHERE = Path("/")  # relative paths of a document mean nothing here
log = get_logger(__name__)

NewLoop = Callable[[Document, RampCatalog, StatusSink, StatusReporter], AbstractAsyncContextManager[ModelLoop]]


@dataclass
class Kept:
    """One object, as it was last seen, and what runs for it."""

    thing: Json
    model: Model
    sink: StatusSink
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False
    reporter: StatusReporter | None = None
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True)
class Basis:
    """What a session is made for; another one needs another session."""

    budget: Budget
    adaptation: Adaptation
    digest: str


class ObjectModels:
    """Adapter of models.ModelSet. `run` until `stop`; then it may run again."""

    def __init__(
        self,
        client: KubeClient,
        namespaces: Sequence[str],
        new_loop: NewLoop,
        *,
        retry_s: float,
        threads: Executor | None = None,
        wrote: Callable[[str, str], None] = lambda namespace, name: None,
        gone: Callable[[str, str], None] = lambda namespace, name: None,
        watch_s: float = WATCH_S,
        observe_s: float = OBSERVE_S,
    ) -> None:
        self.all: dict[str, Model] = {}
        self._client, self._namespaces, self._new_loop = client, tuple(namespaces) or ("",), new_loop
        self._retry_s, self._threads, self._wrote, self._gone = retry_s, threads, wrote, gone
        self._watch_s, self._observe_s = watch_s, observe_s
        self._kept: dict[str, Kept] = {}
        self._stopping = asyncio.Event()

    def find(self, namespace: str, name: str) -> Model | None:
        """The model of that name."""
        return find(self.all, namespace, name)

    def stop(self) -> None:
        """Make `run` end soon."""
        self._stopping.set()

    async def run(self) -> None:
        """Follow all objects until `stop`; then let each loop finish what it has in hand."""
        watching = [asyncio.create_task(self._follow(one), name=f"watch {one}") for one in self._namespaces]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            done, _ = await asyncio.wait({stopping, *watching}, return_when=asyncio.FIRST_COMPLETED)
            for one in done - {stopping}:
                one.result()  # a watch ends by an error of ours only
        finally:
            self._stopping.set()
            for task in (stopping, *watching):
                task.cancel()
            await asyncio.gather(stopping, *watching, return_exceptions=True)
            tasks = [kept.task for kept in self._kept.values() if kept.task is not None]
            for kept in self._kept.values():
                kept.changed.set()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._kept.clear()
            self.all.clear()
            self._stopping.clear()

    async def _follow(self, namespace: str) -> None:
        async for event in Watch(self._client, models_path(namespace), watch_s=self._watch_s).events():
            if isinstance(event, Listed):
                there = {thing["metadata"]["uid"] for thing in event.objects}
                for kept in list(self._kept.values()):
                    meta = kept.thing["metadata"]
                    if meta["uid"] not in there and namespace in ("", meta["namespace"]):
                        self._forget(meta["uid"])
                for thing in event.objects:
                    self._see(thing)
            elif event.kind == "DELETED":
                self._forget(event.object["metadata"]["uid"])
            else:
                self._see(event.object)

    def _see(self, thing: Json) -> None:
        uid = thing["metadata"]["uid"]
        kept = self._kept.get(uid)
        if kept is not None and version_of(thing) < version_of(kept.thing):
            return
        try:
            document = Document(EarlyExitModel.model_validate(thing), NOWHERE)
        except ValidationError as error:
            meta = thing["metadata"]
            log.warning("spec is not usable", model=f"{meta['namespace']}/{meta['name']}", why=problem_of(error))
            return
        if kept is None:
            meta = document.model.metadata
            wrote = functools.partial(self._wrote, meta.namespace, meta.name)
            sink = StatusSink(self._client, thing, threads=self._threads, wrote=wrote)
            kept = self._kept[uid] = Kept(thing, Model(document, unwritten=lambda: sink.problem), sink)
            self.all[document.model.key] = kept.model
            kept.task = asyncio.create_task(self._keep(kept), name=f"model {document.model.key}")
        else:
            kept.thing, kept.model.document = thing, document
            kept.sink.see(thing)
            kept.changed.set()

    def _forget(self, uid: str) -> None:
        kept = self._kept.pop(uid, None)
        if kept is not None:
            self.all.pop(kept.model.document.model.key, None)
            kept.gone = True
            kept.changed.set()

    async def _keep(self, kept: Kept) -> None:
        """Run a loop for one object whenever there is a catalog; a new one when what it was made for changes."""
        while not (self._stopping.is_set() or kept.gone):
            kept.changed.clear()
            document = kept.model.document
            try:
                catalog = await self._catalog(document)
            except CatalogNotReady as error:
                if str(error) != kept.model.reason:
                    log.info("model is not ready", model=document.model.key, reason=str(error))
                kept.model.reason = str(error)
                wanted = document.model.status is not None and document.model.status.catalog is not None
                await _wait(kept.changed, self._retry_s if wanted else None)
                continue
            await self._run_until_changed(kept, document, catalog)
        if kept.gone:
            self._gone(kept.model.document.model.metadata.namespace, kept.model.document.model.metadata.name)

    async def _run_until_changed(self, kept: Kept, document: Document, catalog: RampCatalog) -> None:
        """One loop for one object, until what it was made for changes, or it is to stop."""
        basis, key = _basis(document), document.model.key
        async with self._new_loop(document, catalog, kept.sink, self._reporter(kept, document)) as loop:
            loop.follow(said_by(kept.thing))
            kept.model.loop, kept.model.reason = loop, ""
            running = asyncio.create_task(self._work(kept, loop))
            while not (self._stopping.is_set() or kept.gone or running.done()):
                changing = asyncio.create_task(kept.changed.wait())
                await asyncio.wait({changing, running}, return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
                kept.changed.clear()
                if _basis(kept.model.document) != basis:
                    log.info("budget, adaptation or catalog changed", model=key)
                    break
                loop.follow(said_by(kept.thing))
            loop.stop()
            try:
                await running
            except Exception:
                log.error("adaptation failed, starts anew", model=key, exc_info=True)
                await _wait(kept.changed, self._retry_s)
            kept.model.loop, kept.model.reason = None, "starts anew"

    async def _work(self, kept: Kept, loop: ModelLoop) -> None:
        """The loop until it is told to stop, with the writer of the status and what is told there."""
        adapting = asyncio.create_task(loop.run())
        beside = [asyncio.create_task(kept.sink.run()), asyncio.create_task(self._observe(kept, loop))]
        try:
            await asyncio.wait({adapting, *beside}, return_when=asyncio.FIRST_COMPLETED)
            loop.stop()
            await adapting
            for task in beside:
                if task.done():
                    task.result()  # they end by an error of ours only
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def _reporter(self, kept: Kept, document: Document) -> StatusReporter:
        spec = document.model.spec
        kept.reporter = StatusReporter(
            kept.sink,
            spec.budget,
            spec.adaptation.feedback_timeout_seconds,
            lambda: kept.model.document.model.metadata.generation,
            kept.decided.set,
        )
        return kept.reporter

    async def _observe(self, kept: Kept, loop: ModelLoop) -> None:
        """Report what the plan does, soon after it changed and every now and then."""
        while True:
            await _wait(kept.decided, self._observe_s)
            kept.decided.clear()
            described: Any = await loop.in_session(lambda session: session.describe())
            if described and kept.reporter is not None:
                kept.reporter.observed(described)

    async def _catalog(self, document: Document) -> RampCatalog:
        """The catalog that the status names. Raises CatalogNotReady with what to do about it."""
        status, namespace = document.model.status, document.model.metadata.namespace
        wanted = status.catalog if status is not None else None
        if wanted is None:
            raise CatalogNotReady("the model is not prepared yet: its status names no catalog")
        where = f"ConfigMap {namespace}/{wanted.config_map}"
        path = f"/api/v1/namespaces/{namespace}/configmaps/{wanted.config_map}"
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._threads, self._client.call, "GET", path)
            catalog = RampCatalog.from_json(json.loads(found["data"][CATALOG_KEY]))
        except KubeError as error:
            raise CatalogNotReady(f"{where}: {error}") from None
        except KeyError:
            raise CatalogNotReady(f"{where} has no key {CATALOG_KEY}") from None
        except (InvalidCatalog, ValueError, TypeError) as error:
            raise CatalogNotReady(f"{where} cannot be used: {error}") from None
        if catalog.digest != wanted.digest:
            raise CatalogNotReady(f"{where} holds catalog {catalog.digest}, the status names {wanted.digest}")
        return catalog


def _basis(document: Document) -> Basis:
    spec, status = document.model.spec, document.model.status
    adaptation = spec.adaptation.model_copy(update={"paused": False})  # a session can pause and go on
    digest = status.catalog.digest if status is not None and status.catalog is not None else ""
    return Basis(spec.budget, adaptation, digest)


async def _wait(event: asyncio.Event, within_s: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within_s)
