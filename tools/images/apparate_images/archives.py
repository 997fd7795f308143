"""Archives that containerd imports. Blobs lie once in an OCI layout; an archive is a tar with those of one image.

The large layers of the worker have an archive of their own, which is loaded first and changes with the pins only. The
archives after it leave them out: containerd has them by then.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from . import base, buildah, images, place
from .images import Image

LIST = "archives.json"
COPY_BYTES = 4 << 20  # Python's own 16 KiB would take minutes for the worker's libraries
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def stage_reference(image: Image) -> str:
    """Reference of the stage of an image that has its large layers."""
    return f"{images.REGISTRY}/{image.name}-{image.layers_of_its_own}:{images.version()}"


def write(image: Image, folder: Path) -> tuple[int, int]:
    """Write what is to be loaded, and the list of it into `folder`.

    Returns the bytes of all layers, and of those that are not the base's.
    """
    manifest = _push(images.reference(image.name))
    layers = {layer["digest"]: int(layer["size"]) for layer in _read(manifest)["layers"]}
    of_the_base = {layer["digest"] for layer in _read(_push(base.runtime()))["layers"]}
    before: list[Path] = []
    left_out: set[str] = set()
    owner = image if image.layers_of_its_own else images.BY_NAME.get(image.parent)
    if owner is not None and owner.layers_of_its_own:
        stage = _push(stage_reference(owner))
        left_out = {layer["digest"] for layer in _read(stage)["layers"]}
        before.append(_once(stage_reference(owner), stage))
    archive = folder / f"{image.name}.tar"
    _pack(archive, images.reference(image.name), manifest, left_out)
    kept = place.root() / "archives" / f"{image.name}-{manifest[7:23]}.tar"
    kept.parent.mkdir(exist_ok=True)
    archive.rename(kept)
    (folder / LIST).write_text(json.dumps([str(one) for one in (*before, kept)]))
    return sum(layers.values()), sum(size for digest, size in layers.items() if digest not in of_the_base)


def forget_unused() -> None:
    """Remove archives that no finished image needs, and blobs of which no image of the layout is made."""
    lists = (place.root() / "built").glob(f"*/{LIST}")
    used = {Path(one) for listed in lists for one in json.loads(listed.read_text())}
    for archive in (place.root() / "archives").glob("*.tar"):
        if archive not in used:
            archive.unlink()
    manifests = [one["digest"] for one in json.loads((_layout() / "index.json").read_text())["manifests"]]
    parts = [part["digest"] for one in manifests for part in (_read(one)["config"], *_read(one)["layers"])]
    for blob in set((_layout() / "blobs" / "sha256").iterdir()) - {_blob(one) for one in (*manifests, *parts)}:
        blob.unlink()


def _layout() -> Path:
    return place.root() / "layout"


def _push(reference: str) -> str:
    """Bring an image into the layout, uncompressed; the digest of its manifest. Blobs that are there are not read."""
    noted = place.root() / place.SCRATCH / "digest"
    name = reference.rsplit("/", 1)[1].replace(":", "-")
    buildah.copy_image(reference, f"oci:{_layout()}:{name}", "--digestfile", str(noted))
    return noted.read_text().strip()


def _blob(digest: str) -> Path:
    algorithm, value = digest.split(":")
    return _layout() / "blobs" / algorithm / value


def _read(manifest: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_blob(manifest).read_text())
    return found


def _once(reference: str, manifest: str) -> Path:
    """The archive of an image that seldom changes."""
    archive = place.root() / "archives" / f"{reference.rsplit('/', 1)[1].split(':')[0]}-{manifest[7:23]}.tar"
    archive.parent.mkdir(exist_ok=True)
    if not archive.exists():
        fresh = place.root() / place.SCRATCH / archive.name
        _pack(fresh, reference, manifest, set())
        fresh.rename(archive)
    return archive


def _pack(archive: Path, reference: str, manifest: str, left_out: set[str]) -> None:
    content = _read(manifest)
    index = {
        "schemaVersion": 2,
        "manifests": [
            {
                "mediaType": MANIFEST,
                "digest": manifest,
                "size": _blob(manifest).stat().st_size,
                "annotations": {
                    "io.containerd.image.name": reference,
                    "org.opencontainers.image.ref.name": reference.rsplit(":", 1)[1],
                },
            }
        ],
    }
    digests = [layer["digest"] for layer in content["layers"] if layer["digest"] not in left_out]
    with tarfile.open(archive, "w", copybufsize=COPY_BYTES) as packed:  # type: ignore[call-overload] # typeshed lacks it
        _add(packed, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
        for digest in dict.fromkeys([manifest, content["config"]["digest"], *digests]):
            packed.add(_blob(digest), f"blobs/{digest.replace(':', '/')}")
        _add(packed, "index.json", json.dumps(index).encode())


def _add(packed: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    packed.addfile(entry, io.BytesIO(content))
