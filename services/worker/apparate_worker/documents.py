"""Which models a worker is told to serve: of a file, or of an object on Kubernetes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from apparate.contract.document import Document, load_documents
from apparate.service.kube import client_of
from apparate_worker.errors import InvalidSetup
from apparate_worker.objects import as_prepared, check_is_object, read_object
from apparate_worker.settings import WorkerSettings


def find_documents(settings: WorkerSettings) -> list[Document]:
    """Everything that may be served: of the file, or else the object.

    Raises InvalidDocument, InvalidKubeconfig, InvalidSetup and OSError.
    """
    if settings.document is None:
        with contextlib.closing(client_of(settings.kubeconfig)) as client:
            return [as_prepared(read_object(client, settings.object), settings.prepared)]
    documents = load_documents(settings.document)
    names = names_of(documents)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidSetup(f"{settings.document} has {', '.join(twice)} twice: requests know models by name alone")
    return documents


def choose(documents: Sequence[Document], settings: WorkerSettings) -> list[Document]:
    """What is served from the start: what the settings name, or else everything. Raises InvalidSetup."""
    chosen = list(documents)
    if settings.model:
        chosen = [document_of(settings.model, documents, settings)]
    for name, value in (("EEM_WORKER_PREPARED", settings.prepared), ("EEM_WORKER_OBJECT", settings.object)):
        if value and len(chosen) > 1:
            there = ", ".join(names_of(documents))
            raise InvalidSetup(f"{name} is of one model, {settings.document} has {there}: name one by EEM_WORKER_MODEL")
    if settings.object and settings.document:
        check_is_object(chosen[0], settings.object)
    return chosen


def document_of(name: str, documents: Sequence[Document], settings: WorkerSettings) -> Document:
    """The document of a model. Raises InvalidSetup."""
    for one in documents:
        if one.model.metadata.name == name:
            return one
    where = settings.document or settings.object
    raise InvalidSetup(f"{where} has no model {name!r:.80}; there are: {', '.join(names_of(documents))}")


def names_of(documents: Sequence[Document]) -> list[str]:
    """The models' names in requests."""
    return [one.model.metadata.name for one in documents]
