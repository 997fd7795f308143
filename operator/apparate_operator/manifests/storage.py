"""Where pods find models, data and what was prepared of them: claims, image volumes, Secrets."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from apparate.contract.labels import PREFIX, PREPARE
from apparate.contract.resource import Credentials, EarlyExitModel, Storage
from apparate.contract.source import scheme
from apparate_operator.kinds import CLAIM, Json
from apparate_operator.manifests.common import PREPARED, child_name, manifest

SOURCES = "/sources"
"""Where the prepare pod has what the model is read from: claims below pvc/, images below oci/."""
DEFAULT_SIZE = "10Gi"
STORE = "prepared"
KEPT_IN = f"{PREFIX}/kept-in"
"""Annotation of the Deployment: the storage that has the revision it serves; the spec may name another one by now."""


def kept_in(model: EarlyExitModel) -> str:
    """The storage of a model as an annotation."""
    return model.spec.storage.model_dump_json(by_alias=True, exclude_defaults=True)


def with_storage(model: EarlyExitModel, kept: str) -> EarlyExitModel:
    """The model with the storage that an annotation names; as it is when there is none that can be read."""
    try:
        storage = Storage.model_validate_json(kept)
    except ValidationError:
        return model
    return model.model_copy(update={"spec": model.spec.model_copy(update={"storage": storage})})


def claim(model: EarlyExitModel) -> Json | None:
    """The claim for prepared models, when it is the operator's to make."""
    storage = model.spec.storage
    if storage.s3 is not None or (storage.pvc is not None and storage.pvc.claim_name):
        return None
    pvc = storage.pvc
    spec: Json = {
        "accessModes": list(pvc.access_modes) if pvc and pvc.access_modes else ["ReadWriteOnce"],
        "resources": {"requests": {"storage": (pvc.size if pvc else None) or DEFAULT_SIZE}},
    }
    if pvc is not None and pvc.storage_class_name is not None:
        spec["storageClassName"] = pvc.storage_class_name
    return manifest(CLAIM, model, child_name(model, STORE), PREPARE, spec=spec)


def claim_name(model: EarlyExitModel) -> str:
    """The claim that holds prepared models; empty with S3."""
    storage = model.spec.storage
    if storage.s3 is not None:
        return ""
    return (storage.pvc.claim_name if storage.pvc else None) or child_name(model, STORE)


def store_volume(model: EarlyExitModel, *, read_only: bool) -> Json:
    """The volume of prepared models: the claim, or with S3 an empty folder to copy into."""
    name = claim_name(model)
    if not name:
        return {"name": STORE, "emptyDir": {}}
    return {"name": STORE, "persistentVolumeClaim": {"claimName": name} | ({"readOnly": True} if read_only else {})}


def store_mount(*, read_only: bool) -> Json:
    """Where it is mounted."""
    return {"name": STORE, "mountPath": PREPARED} | ({"readOnly": True} if read_only else {})


def prepared_folder(model: EarlyExitModel, revision: str) -> str:
    """Where pods find one revision of a prepared model."""
    return f"{PREPARED}/{revision}/{model.metadata.namespace}/{model.metadata.name}"


def prepared_url(model: EarlyExitModel, revision: str) -> str:
    """Where S3 has one revision of a prepared model."""
    s3 = model.spec.storage.s3
    base = s3.url.rstrip("/") if s3 is not None else ""
    return f"{base}/{revision}/{model.metadata.namespace}/{model.metadata.name}"


def source_volumes(model: EarlyExitModel) -> tuple[list[Json], list[Json]]:
    """Volumes and mounts for what is read from claims and image volumes; the rest is fetched, or is in the image."""
    volumes: list[Json] = []
    mounts: list[Json] = []
    for part, url in (("model", model.spec.model.source), ("data", model.spec.bootstrap.data)):
        kind = scheme(url)
        if kind == "pvc":
            name = url.removeprefix("pvc://").partition("/")[0]
            volume: Json = {"name": f"{part}-source", "persistentVolumeClaim": {"claimName": name, "readOnly": True}}
            place = f"{SOURCES}/pvc/{name}"
        elif kind == "oci":
            volume = {"name": f"{part}-source", "image": {"reference": url.removeprefix("oci://")}}
            place = f"{SOURCES}/oci/{part}"
        else:
            continue
        if any(mount["mountPath"] == place for mount in mounts):
            continue  # model and data in one claim
        volumes.append(volume)
        mounts.append({"name": volume["name"], "mountPath": place, "readOnly": True})
    return volumes, mounts


def credentials(model: EarlyExitModel) -> Iterator[tuple[str, Credentials]]:
    """The Secrets of a preparation, with the prefix that its variables get: they may all have the same keys."""
    s3 = model.spec.storage.s3
    given = (
        ("MODEL_", model.spec.model.source, model.spec.model.credentials),
        ("DATA_", model.spec.bootstrap.data, model.spec.bootstrap.credentials),
        ("STORE_", "s3://", s3.credentials if s3 is not None else None),
    )
    for prefix, url, found in given:
        if found is not None and scheme(url) != "oci":
            yield prefix, found


def pull_secrets(model: EarlyExitModel) -> list[Json]:
    """Secrets that open registries of image volumes."""
    given = (
        (model.spec.model.source, model.spec.model.credentials),
        (model.spec.bootstrap.data, model.spec.bootstrap.credentials),
    )
    return [{"name": found.secret_name} for url, found in given if found is not None and scheme(url) == "oci"]


def from_secret(prefix: str, secret: Credentials) -> Json:
    """All keys of a Secret as variables."""
    return {"prefix": prefix, "secretRef": {"name": secret.secret_name}}
