"""Which models are adapted: EarlyExitModel documents whose prepared catalogs are there, each with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from apparate.catalog import InvalidCatalog, RampCatalog
from apparate.contract.document import Document, InvalidDocument, load_documents
from apparate.contract.pause import Pause, document_says
from apparate.service.telemetry import get_logger
from apparate_controller.errors import CatalogNotReady
from apparate_controller.loop import ModelLoop

CATALOG_FILE = "catalog.json"
MAX_CATALOG_BYTES = 64 * 2**20  # far above any real one; a wrong file is refused, not read


def load_models(paths: Sequence[Path]) -> list[Document]:
    """The documents of all files. Raises InvalidDocument, also for a model that is in two files, and OSError."""
    found: dict[str, Document] = {}
    for path in paths:
        for document in load_documents(path):
            if document.model.key in found:
                raise InvalidDocument(f"{path}: {document.model.key} is in another file too")
            found[document.model.key] = document
    return list(found.values())


def load_catalog(path: Path) -> RampCatalog:
    """The catalog of a prepared model. Raises CatalogNotReady with what to do about it."""
    try:
        if path.stat().st_size > MAX_CATALOG_BYTES:
            raise CatalogNotReady(f"{path} has {path.stat().st_size} bytes, allowed are {MAX_CATALOG_BYTES}")
        return RampCatalog.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CatalogNotReady(f"{path} is not there: the model is not prepared yet (apparate prepare)") from None
    except (OSError, ValueError) as error:  # InvalidCatalog, JSON and encoding errors are ValueErrors
        kind = "" if isinstance(error, InvalidCatalog) else f"{type(error).__name__}: "
        raise CatalogNotReady(f"{path} cannot be used: {kind}{error}") from None


@dataclass
class Model:
    """One document and its loop, if its catalog is there."""

    document: Document
    loop: ModelLoop | None = None
    reason: str = "not looked at yet"
    """Why there is no loop; empty when there is one."""
    unwritten: Callable[[], str] = lambda: ""
    """Why what is known of it cannot be written where people look; empty when it can."""

    @property
    def problem(self) -> str:
        """Why the model is not adapted; empty when it is."""
        return (self.loop.problem or self.unwritten()) if self.loop is not None else self.reason

    @property
    def pause(self) -> Pause:
        """Whether adaptation stands still, since when and at whose word."""
        return self.loop.pause if self.loop is not None else document_says(self.document.model.spec.adaptation.paused)


class ModelSet(Protocol):
    """The models of one controller, for its HTTP API."""

    all: dict[str, Model]
    """By namespace/name/uid."""

    def find(self, namespace: str, name: str) -> Model | None:
        """The model of that name."""


def find(models: Mapping[str, Model], namespace: str, name: str) -> Model | None:
    """The model of that name."""
    for model in models.values():
        metadata = model.document.model.metadata
        if (metadata.namespace, metadata.name) == (namespace, name):
            return model
    return None


class Models:
    """All models of one controller; each is started when its catalog appears, and anew when the catalog changes."""

    def __init__(
        self, documents: Sequence[Document], new_loop: Callable[[Model, RampCatalog], ModelLoop], retry_s: float
    ) -> None:
        self.all = {document.model.key: Model(document) for document in documents}
        self._new_loop, self._retry_s = new_loop, retry_s
        self._stopping = asyncio.Event()
        self._log = get_logger(__name__)

    def find(self, namespace: str, name: str) -> Model | None:
        """The model of that name."""
        return find(self.all, namespace, name)

    async def run(self) -> None:
        """Keep every model's loop running until `stop`; then let each finish what it has in hand."""
        async with asyncio.TaskGroup() as group:
            for model in self.all.values():
                group.create_task(self._keep(model), name=f"model {model.document.model.key}")

    def stop(self) -> None:
        """Make `run` end soon."""
        self._stopping.set()

    async def _keep(self, model: Model) -> None:
        path = model.document.prepared / CATALOG_FILE
        while not self._stopping.is_set():
            try:
                catalog = await asyncio.to_thread(load_catalog, path)
            except CatalogNotReady as error:
                if str(error) != model.reason:
                    self._log.warning("model is not ready", model=model.document.model.key, reason=str(error))
                model.reason = str(error)
                await self._wait()
                continue
            model.loop, model.reason = self._new_loop(model, catalog), ""
            model.loop.follow(document_says(model.document.model.spec.adaptation.paused))
            running = asyncio.ensure_future(model.loop.run())
            await self._until_replaced(path, catalog, running)
            model.loop.stop()
            await running

    async def _until_replaced(self, path: Path, catalog: RampCatalog, running: asyncio.Future[None]) -> None:
        """Return when the catalog file has another digest, or the loop has ended, or everything stops."""
        stamp = None
        while not (self._stopping.is_set() or running.done()):
            await self._wait()
            with contextlib.suppress(OSError, CatalogNotReady):  # a good catalog in use outlives a bad file
                found = await asyncio.to_thread(path.stat)
                if (found.st_mtime_ns, found.st_size) == stamp:
                    continue
                if (await asyncio.to_thread(load_catalog, path)).digest != catalog.digest:
                    self._log.info("catalog changed", model=str(path.parent))
                    return
                stamp = (found.st_mtime_ns, found.st_size)

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), self._retry_s)
