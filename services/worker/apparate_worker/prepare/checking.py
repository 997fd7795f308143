"""What preparing a document would stumble over, found in seconds: nothing is trained, measured or written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from apparate.contract.document import Document, InvalidDocument
from apparate_worker.model.errors import InvalidPrepared, InvalidSource, ModelError, UnsupportedModel
from apparate_worker.model.graph import sites, trace
from apparate_worker.model.sources import check_sha256, load_source
from apparate_worker.model.store import read_catalog
from apparate_worker.prepare.bootstrap import BootstrapData, load_bootstrap
from apparate_worker.prepare.run import device_named, preparation_key

EXAMPLES = 2  # items that the model is run on


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    """Not wrong, and worth knowing."""
    WRONG = "wrong"
    SKIPPED = "skipped"
    """It needs what an earlier check found wrong, or what is not here."""


@dataclass(frozen=True)
class Finding:
    """One check of one document."""

    check: str
    verdict: Verdict
    told: str


def check(document: Document) -> Iterator[Finding]:
    """Check data, model, answer, sites and what is prepared already, in this order."""
    spec = document.model.spec
    if spec.model.task != "classification":
        yield Finding(
            "task", Verdict.WRONG, f"spec.model.task is {spec.model.task}: this version serves classification"
        )
        return
    try:
        places = (document.source, document.bootstrap_data)
    except InvalidDocument as error:
        yield Finding("files", Verdict.SKIPPED, f"{error}; they are checked where they can be")
        return
    torch.set_num_threads(spec.serving.threads)
    found: dict[str, object] = {}

    def tried(name: str, call: Callable[[], str]) -> Finding:
        try:
            return Finding(name, Verdict.OK, call())
        except (ModelError, OSError) as error:
            return Finding(name, Verdict.WRONG, str(error))

    def data() -> str:
        loaded = load_bootstrap(places[1], spec.model.inputs, spec.bootstrap.max_records)
        check_sha256(places[1], spec.bootstrap.sha256)
        found["data"] = loaded
        return f"{len(loaded)} records in {places[1]}"

    def model() -> str:
        loaded = load_source(document)
        found["model"] = loaded
        return f"{sum(p.numel() for p in loaded.parameters()):,} weights in {places[0]}"

    yield tried("data", data)
    yield tried("model", model)
    if isinstance(loaded := found.get("model"), nn.Module) and isinstance(records := found.get("data"), BootstrapData):
        taken = records.take(range(EXAMPLES), torch.device("cpu"))
        inputs = [taken[one.name] for one in spec.model.inputs]
        yield (answered := tried("answer", lambda: _answer(document, loaded, inputs)))
        if answered.verdict is Verdict.OK:
            yield tried("sites", lambda: _sites(document, loaded, inputs))
        yield _prepared(document)
    else:
        yield Finding("answer", Verdict.SKIPPED, "needs the model and its data")


def _answer(document: Document, model: nn.Module, inputs: list[Tensor]) -> str:
    """Run the model on a few records. Raises InvalidSource."""
    try:
        with torch.inference_mode():
            scores = model(*inputs)
    except ModelError:
        raise
    except Exception as error:  # it is anybody's model
        raise InvalidSource(
            f"the model raises on the first {EXAMPLES} records: {type(error).__name__}: {error}"
        ) from error
    if scores.ndim != 2 or len(scores) != EXAMPLES:
        raise InvalidSource(
            f"the model answers {list(scores.shape)} to {EXAMPLES} records, expected [{EXAMPLES}, classes]"
        )
    classes = document.model.spec.model.classes
    if classes and len(classes) != scores.shape[1]:
        raise InvalidSource(f"the model has {scores.shape[1]} scores, spec.model.classes names {len(classes)} classes")
    return f"{scores.shape[1]} class scores"


def _sites(document: Document, model: nn.Module, inputs: list[Tensor]) -> str:
    """Count the places where a ramp may sit. Raises ModelError."""
    found = len(sites(trace(model, inputs, document.model.spec.model.inputs)))
    if not found:
        raise UnsupportedModel("no place in the model is crossed by all of its computation: no ramp can sit anywhere")
    return f"{found} places where a ramp may sit"


def _prepared(document: Document) -> Finding:
    """What the prepared folder holds."""
    folder = document.prepared
    try:
        catalog = read_catalog(folder)
    except InvalidPrepared as error:
        told = f"{error}" if folder.exists() else f"not prepared yet; next: apparate prepare, into {folder}"
        return Finding("prepared", Verdict.NOTE, told)
    key = preparation_key(document, torch.device(device_named(document.model.spec.serving.device)))
    if catalog.extra.get("key") != key:
        return Finding("prepared", Verdict.NOTE, f"{folder} was prepared from something else; it will be made anew")
    return Finding("prepared", Verdict.OK, f"{catalog.ramps} ramps in {folder}")
