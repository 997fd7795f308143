"""What preparing a document would stumble over, found in seconds: nothing is trained, measured or written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from apparate.contract.document import Document, InvalidDocument
from apparate.contract.edits import Edit, edits
from apparate_worker.model.errors import InvalidPrepared, InvalidSource, ModelError
from apparate_worker.model.graph import sites, trace
from apparate_worker.model.sources import check_sha256, load_source
from apparate_worker.model.store import read_catalog
from apparate_worker.prepare.bootstrap import BootstrapData, load_bootstrap
from apparate_worker.prepare.choosing import nothing_exits
from apparate_worker.prepare.inputs import as_fields, code_of, device_named, is_made_of, made_of

EXAMPLES = 2  # items that the model is run on
ANEW = "prepared anew by the next `apparate prepare` or `apparate serve`"


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
    field: str = ""
    """Of the document, that it is about."""


def check(document: Document) -> Iterator[Finding]:
    """Check data, model, answer, sites and what is prepared already, in this order."""
    spec = document.model.spec
    if spec.model.task != "classification":
        yield Finding(
            "task", Verdict.WRONG, f"is {spec.model.task}: this version serves classification", "spec.model.task"
        )
        return
    try:
        places = (document.source, document.bootstrap_data)
    except InvalidDocument as error:
        yield Finding("files", Verdict.SKIPPED, f"{error}; they are checked where they can be")
        return
    torch.set_num_threads(spec.serving.threads)
    found: dict[str, object] = {}

    def tried(name: str, field: str, call: Callable[[], str]) -> Finding:
        try:
            return Finding(name, Verdict.OK, call(), field)
        except (ModelError, OSError) as error:
            return Finding(name, Verdict.WRONG, str(error), field)

    def data() -> str:
        loaded = load_bootstrap(places[1], spec.model.inputs, spec.bootstrap.max_records)
        check_sha256(places[1], spec.bootstrap.sha256)
        found["data"] = loaded
        return f"{len(loaded)} records in {places[1]}"

    def model() -> str:
        loaded = load_source(document)
        found["model"] = loaded
        return f"{sum(p.numel() for p in loaded.parameters()):,} weights in {places[0]}"

    yield tried("data", "spec.bootstrap.data", data)
    yield tried("model", "spec.model.source", model)
    if isinstance(loaded := found.get("model"), nn.Module) and isinstance(records := found.get("data"), BootstrapData):
        taken = records.take(range(EXAMPLES), torch.device("cpu"))
        inputs = [taken[one.name] for one in spec.model.inputs]
        yield (answered := tried("answer", "spec.model", lambda: _answer(document, loaded, inputs)))
        if answered.verdict is Verdict.OK:
            yield tried("sites", "spec.model", lambda: _sites(document, loaded, inputs))
        yield from _prepared(document)
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
    return f"{len(sites(trace(model, inputs, document.model.spec.model.inputs)))} places where a ramp may sit"


def _prepared(document: Document) -> Iterator[Finding]:
    """What the prepared folder holds, and what has changed since."""
    folder = document.prepared
    try:
        catalog = read_catalog(folder)
    except InvalidPrepared as error:
        told = f"{error}" if folder.exists() else f"not prepared yet; next: apparate prepare, into {folder}"
        yield Finding("prepared", Verdict.NOTE, told)
        return
    if told := nothing_exits(document, catalog):
        yield Finding("ramps", Verdict.NOTE, told, "spec.budget.rampOverhead")
    content = made_of(document, torch.device(device_named(document.model.spec.serving.device)))
    if is_made_of(catalog, content):
        yield Finding("prepared", Verdict.OK, f"{catalog.ramps} ramps in {folder}")
        if content["code"] and not code_of(catalog):
            told = "whether its code has changed is not known: if so, run: apparate prepare --force"
            yield Finding("prepared", Verdict.NOTE, told, "spec.model.entrypoint")
        return
    now = {**as_fields(content), "classes": list(document.model.spec.model.classes)}
    then = {**(catalog.extra.get("made_of") or {}), "classes": catalog.extra.get("classes") or []}
    if "spec" not in then:
        yield Finding("prepared", Verdict.NOTE, f"{folder} was prepared from something else; it will be made anew")
        return
    if not then.get("code") or not now["code"]:  # not known, which is no change
        then["code"] = now["code"]
    yield from (_changed(edit) for edit in edits(then, now))


def _changed(edit: Edit) -> Finding:
    """What is another than when the model was prepared."""
    kind, _, name = edit.field.partition(".")
    told = {
        "content": f"other content, SHA-256 {edit}",
        "version": f"{name} {edit}",
        "code": f"{name} {'is new' if edit.before is None else 'is gone' if edit.after is None else 'changed'}",
    }.get(kind, str(edit))
    fields = {"content": name, "version": "", "classes": "spec.model.classes", "code": "spec.model.entrypoint"}
    return Finding("prepared", Verdict.NOTE, f"{told}: {ANEW}", fields.get(kind, edit.field))
