"""A preparation as a Job: reads its EarlyExitModel, prepares into the store, publishes the catalog."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from apparate.catalog import RampCatalog
from apparate.contract.conditions import Reason
from apparate.contract.document import Document
from apparate.contract.resource import EarlyExitModel
from apparate.contract.revision import revision as revision_of
from apparate.service.kube import KubeClient, KubeError
from apparate.service.telemetry import get_logger
from apparate.service.termination import LOG, tell_end
from apparate_worker.errors import InvalidSetup
from apparate_worker.model.store import CATALOG
from apparate_worker.objects import read_object
from apparate_worker.prepare.failures import PrepareFailure, failure_of
from apparate_worker.prepare.progress import Progress, Step
from apparate_worker.prepare.publishing import Publisher
from apparate_worker.prepare.run import prepare
from apparate_worker.prepare.sources import STORE, local_document, secrets_of
from apparate_worker.prepare.transfer import download_s3, folders_s3, remove_s3, upload_s3

log = get_logger(__name__)
REVISION = re.compile(r"^[0-9a-f]{8}$")


@dataclass(frozen=True)
class Order:
    """What a Job is told on its command line."""

    object: str
    """NAMESPACE/NAME of the model."""
    revision: str
    """Which revision of it; another one means that the Job is out of date."""
    store: str
    """A folder, or s3://BUCKET/PREFIX."""
    sources: Path
    """Where claims and image volumes are mounted."""
    config_map: str
    """Where progress and catalog are published; empty: nowhere."""
    keep: tuple[str, ...] = ()
    """Other revisions that are in use; all others are removed from the store."""
    termination_log: Path = LOG


def prepare_in_cluster(
    client: KubeClient, order: Order, environ: Mapping[str, str], *, told: Progress, force: bool = False
) -> RampCatalog:
    """Carry an order out. Raises PrepareFailure, after leaving its reason in the termination log."""
    try:
        return _prepare(client, order, environ, told, force)
    except (PrepareFailure, InvalidSetup, KubeError, OSError, ValueError, RuntimeError) as error:
        failure = failure_of(error)
        tell_end(order.termination_log, failure.reason, str(failure))
        raise failure from error


def _prepare(client: KubeClient, order: Order, environ: Mapping[str, str], told: Progress, force: bool) -> RampCatalog:
    model = read_object(client, order.object).model
    wanted = revision_of(model.spec)
    if wanted != order.revision:
        text = f"{order.object} asks for revision {wanted} by now, this Job is for {order.revision}"
        raise PrepareFailure(Reason.SUPERSEDED, text)
    publisher = Publisher(client, model, order.config_map, order.revision) if order.config_map else None
    progress = _both(told, publisher.progress) if publisher is not None else told
    with tempfile.TemporaryDirectory(prefix="apparate-") as scratch:
        progress(Step("fetching", 0.0))
        catalog = _into_store(model, order, environ, Path(scratch), progress, force)
    if publisher is not None:
        publisher.catalog(catalog)
    return catalog


def _into_store(
    model: EarlyExitModel, order: Order, environ: Mapping[str, str], scratch: Path, progress: Progress, force: bool
) -> RampCatalog:
    s3 = order.store.startswith("s3://")
    store = (scratch / "store" if s3 else Path(order.store)) / order.revision
    document = local_document(model, mounted=order.sources, scratch=scratch / "in", store=store, environ=environ)
    if not s3:
        catalog = prepare(document, progress=progress, force=force)
        remove_others(Path(order.store), document, {order.revision, *order.keep})
        return catalog
    url = f"{order.store.rstrip('/')}/{order.revision}/{model.metadata.namespace}/{model.metadata.name}"
    secrets = secrets_of(STORE, environ)
    if not force:
        _fetch_if_there(url, document, secrets)
    catalog = prepare(document, progress=progress, force=force)
    progress(Step("storing", 0.0))
    upload_s3(document.prepared, url, secrets, last=CATALOG)
    remove_others_s3(order.store, document, {order.revision, *order.keep}, secrets)
    return catalog


def _fetch_if_there(url: str, document: Document, secrets: Mapping[str, str]) -> None:
    """What an earlier Job stored, so that nothing is done twice."""
    try:
        download_s3(url, document.prepared, secrets)
    except PrepareFailure as error:
        if error.reason != Reason.SOURCE_NOT_FOUND or error.passing:
            raise


def remove_others(store: Path, document: Document, keep: set[str]) -> None:
    """Remove revisions of a model that nobody uses; folders of other models and other things stay."""
    meta = document.model.metadata
    for folder in store.iterdir():
        old = folder / meta.namespace / meta.name
        if REVISION.match(folder.name) and folder.name not in keep and old.is_dir():
            shutil.rmtree(old, ignore_errors=True)
            for empty in (old.parent, folder):
                if not any(one for one in empty.iterdir() if not one.name.endswith(".lock")):
                    shutil.rmtree(empty, ignore_errors=True)


def remove_others_s3(store: str, document: Document, keep: set[str], secrets: Mapping[str, str]) -> None:
    """The same in S3. Who may write there need not be allowed to remove: then they stay, and the log says so."""
    meta, base = document.model.metadata, store.rstrip("/")
    try:
        for revision in folders_s3(base, secrets):
            if REVISION.match(revision) and revision not in keep:
                url = f"{base}/{revision}/{meta.namespace}/{meta.name}"
                if count := remove_s3(url, secrets, first=CATALOG):
                    log.info("removed an old revision", url=url, files=count)
    except PrepareFailure as error:
        log.warning("old revisions stay in the store", error=str(error))


def _both(one: Progress, other: Progress) -> Callable[[Step], None]:
    def tell(step: Step) -> None:
        one(step)
        other(step)

    return tell
