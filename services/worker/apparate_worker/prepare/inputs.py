"""What a prepared model is made of, and by which fields of its document people know that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from pydantic.alias_generators import to_camel

from apparate.catalog import RampCatalog
from apparate.contract.document import Document
from apparate_worker.model.backends import PACKAGES, has_onnx
from apparate_worker.model.sources import source_sha256
from apparate_worker.prepare.code import own_code

VERSION = 5  # rises when the same inputs would be prepared differently


def device_named(wanted: str) -> str:
    """The device that `spec.serving.device` means here."""
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def preparation_key(content: Mapping[str, Any]) -> str:
    """SHA-256 of everything that a prepared model depends on, as `made_of` has it, but the entrypoint's code.

    The code is compared apart: it is not always there to be seen, and then a prepared model stays as it is.
    """
    return resume_key({name: part for name, part in content.items() if name != "code"})


def resume_key(content: Mapping[str, Any]) -> str:
    """SHA-256 of all that a stopped preparation must have in common with the one that goes on from it."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def code_of(catalog: RampCatalog) -> dict[str, str]:
    """The entrypoint's code that a prepared model is of, as `own_code` has it; empty when that is not known."""
    return dict((catalog.extra.get("made_of") or {}).get("code") or {})


def is_made_of(catalog: RampCatalog, content: Mapping[str, Any]) -> bool:
    """Whether preparing would make this very model again."""
    then, now = code_of(catalog), content["code"]
    return catalog.extra.get("key") == preparation_key(content) and (not then or not now or then == now)


def made_of(document: Document, device: torch.device) -> dict[str, Any]:
    """Everything that a prepared model depends on: the document's settings, files, device and versions."""
    spec = document.model.spec
    source = source_sha256(document.source) if document.source.exists() else ""  # loading says what is wrong with it
    return {
        "version": VERSION,
        "torch": torch.__version__,
        "model": spec.model.model_dump(mode="json", exclude={"credentials"}),
        "bootstrap": spec.bootstrap.model_dump(mode="json", exclude={"credentials"}),
        "overhead": spec.budget.ramp_overhead,
        "serving": [spec.serving.max_batch, spec.serving.threads, str(device), spec.serving.backend],
        "onnx": {name: version(name) for name in PACKAGES} if has_onnx() else {},
        "source": source,
        "data": source_sha256(document.bootstrap_data),
        "code": own_code(document),
    }


def as_fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is made of as people know it: by field of the document, then files and versions."""
    names = ("maxBatch", "threads", "device", "backend")
    return {
        "spec": {
            "model": _camel({name: value for name, value in content["model"].items() if name != "classes"}),
            "bootstrap": _camel(content["bootstrap"]),
            "budget": {"rampOverhead": content["overhead"]},
            "serving": dict(zip(names, content["serving"], strict=True)),
        },
        "content": {"spec.model.source": content["source"][:12], "spec.bootstrap.data": content["data"][:12]},
        "version": {"torch": content["torch"], **content["onnx"], "preparation": content["version"]},
        "code": content["code"],
    }


def _camel(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {to_camel(name): _camel(part) for name, part in value.items()}
    return [_camel(one) for one in value] if isinstance(value, list) else value
