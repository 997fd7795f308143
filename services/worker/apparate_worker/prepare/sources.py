"""Sources of an EarlyExitModel as local paths: mounted, in the image, or fetched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from apparate.contract.conditions import Reason
from apparate.contract.document import Document
from apparate.contract.resource import EarlyExitModel
from apparate.contract.source import scheme
from apparate_worker.model.errors import InvalidSource
from apparate_worker.model.sources import check_sha256
from apparate_worker.prepare.failures import PrepareFailure
from apparate_worker.prepare.transfer import download_hub, download_s3

MODEL, DATA, STORE = "MODEL_", "DATA_", "STORE_"
"""Prefixes of the variables that Secrets come in."""


def secrets_of(prefix: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The keys of the Secret that came with a prefix."""
    return {name.removeprefix(prefix): value for name, value in environ.items() if name.startswith(prefix)}


def local_document(
    model: EarlyExitModel, *, mounted: Path, scratch: Path, store: Path, environ: Mapping[str, str]
) -> Document:
    """The document with its sources as local paths and its prepared folder below `store`. Raises PrepareFailure."""
    spec = model.spec
    source = _local(spec.model.source, "model", mounted, scratch, secrets_of(MODEL, environ))
    data = _local(spec.bootstrap.data, "data", mounted, scratch, secrets_of(DATA, environ))
    if data.is_dir():
        data = _only(data, "*.npz", spec.bootstrap.data)
    try:
        check_sha256(data, spec.bootstrap.sha256)
    except InvalidSource as error:
        raise PrepareFailure(Reason.SOURCE_DIFFERS, str(error)) from error
    changed = spec.model_copy(
        update={
            "model": spec.model.model_copy(update={"source": str(source)}),
            "bootstrap": spec.bootstrap.model_copy(update={"data": str(data)}),
            "storage": spec.storage.model_copy(update={"path": str(store)}),
        }
    )
    beside = source if source.is_dir() else source.parent  # where the entrypoint's module may lie
    return Document(model.model_copy(update={"spec": changed}), beside)


def _local(url: str, part: str, mounted: Path, scratch: Path, secrets: Mapping[str, str]) -> Path:
    kind = scheme(url)
    if kind == "s3":
        return _fetched(scratch / part, lambda folder: download_s3(url, folder, secrets))
    if kind == "hf":
        kinds = ("model",) if part == "model" else ("dataset", "model")
        return _fetched(scratch / part, lambda folder: download_hub(url, folder, secrets, kinds))
    path = _mounted(url, kind, part, mounted)
    if not path.exists():
        raise PrepareFailure(Reason.SOURCE_NOT_FOUND, f"{url} does not exist: there is no {path} in the pod")
    return path


def _mounted(url: str, kind: str, part: str, mounted: Path) -> Path:
    if kind == "pvc":
        claim, _, path = url.removeprefix("pvc://").partition("/")
        return mounted / "pvc" / claim / unquote(path)
    if kind == "oci":
        root = mounted / "oci" / part
        inner = root / "models"  # where images of models have them by custom
        return inner if inner.is_dir() else root
    return Path(unquote(urlsplit(url).path))


def _fetched(folder: Path, fetch: Callable[[Path], Path]) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return fetch(folder)


def _only(folder: Path, pattern: str, url: str) -> Path:
    found = sorted(folder.rglob(pattern))
    if len(found) != 1:
        raise PrepareFailure(Reason.SOURCE_NOT_FOUND, f"{url} has {len(found)} files {pattern}, expected one: name it")
    return found[0]
