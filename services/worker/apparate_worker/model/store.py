"""A prepared model in a folder: backbone, segments, ramps and catalog under one digest.

`catalog.json` names the SHA-256 of every other file, and its own digest covers those and itself, so one changed byte
anywhere is found. The folder appears in one rename, whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from apparate.catalog import InvalidCatalog, RampCatalog
from apparate.contract.document import Document
from apparate.contract.resource import TensorSpec
from apparate.service.telemetry import get_logger
from apparate_worker.errors import words_of
from apparate_worker.model.backends import COMPILE, EAGER, GRAPH_WEIGHTS, ONNX, files_of, in_onnx, with_compiled
from apparate_worker.model.cutting import Cut, Source
from apparate_worker.model.errors import InvalidPrepared, UnsupportedModel
from apparate_worker.model.memory import check_room
from apparate_worker.model.ramps import RampHead, RampShape, Tail
from apparate_worker.model.segments import SegmentedModel, assemble
from apparate_worker.model.sources import dtype_of, source_sha256

CATALOG, MODEL, SEGMENTS, RAMPS = "catalog.json", "model.safetensors", "segments.json", "ramps.safetensors"
FILES = (MODEL, SEGMENTS, RAMPS)
FORMAT = 1
HARMLESS_SIZE = 32  # of dimensions that vary
log = get_logger(__name__)


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """Everything a worker needs to serve one model with early exits."""

    catalog: RampCatalog
    model: Any
    """A `SegmentedModel`, or what takes its place in another back end."""
    heads: tuple[Any, ...]
    """A `RampHead` for each ramp, or what takes its place."""
    inputs: tuple[TensorSpec, ...]
    output: str
    classes: tuple[str, ...]


def save_backbone(folder: Path, constants: Mapping[str, Tensor], model: Cut) -> None:
    """Write the backbone's weights and the text of its segments."""
    save_cut(folder, model)
    _save({name: value.detach().cpu().clone().contiguous() for name, value in constants.items()}, folder / MODEL)


def save_cut(folder: Path, model: Cut, name: str = SEGMENTS) -> None:
    """Write the text of a model's segments."""
    (folder / name).write_text(json.dumps(asdict(model), indent=1), encoding="utf-8")


def save_ramps(folder: Path, heads: Sequence[RampHead]) -> None:
    """Write the ramps' numbers; what they mean stands in the catalog."""
    tensors: dict[str, Tensor] = {}
    for r, head in enumerate(heads):
        weight, bias, temperature = head.numpy()
        tensors |= {f"{r}.weight": torch.tensor(weight), f"{r}.bias": torch.tensor(bias)}
        tensors[f"{r}.temperature"] = torch.tensor(temperature, dtype=torch.float64)
    _save(tensors, folder / RAMPS)


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors. Raises OSError with its number, by which a full disk is told; safetensors has it in its text."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found is None:
            raise
        number = int(found[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def load_backbone(folder: Path, device: torch.device) -> tuple[SegmentedModel, Tail | None]:
    """The running model of a folder, and what its ramps end with. Raises InvalidPrepared."""
    model, constants = load_cut(folder, device)
    try:
        tail = Tail.of(model.tail, constants, device) if model.tail is not None else None
        return assemble(model, constants, device), tail
    except KeyError as error:
        raise InvalidPrepared(f"{folder / MODEL} has no tensor {error}, which {SEGMENTS} needs") from None
    except UnsupportedModel as error:
        raise InvalidPrepared(f"{folder / SEGMENTS} cannot be run: {error}") from error


def load_cut(folder: Path, device: torch.device, name: str = SEGMENTS) -> tuple[Cut, dict[str, Tensor]]:
    """The text of a folder's model and its constants. Raises InvalidPrepared."""
    return load_text(folder, name), _tensors(folder / MODEL, device)


def load_text(folder: Path, name: str = SEGMENTS) -> Cut:
    """The text of a folder's model. Raises InvalidPrepared."""
    try:
        return _cut(json.loads((folder / name).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidPrepared(f"{folder / name} cannot be read: {error}") from error


def _cut(data: Mapping[str, Any]) -> Cut:
    def source(one: Mapping[str, Any]) -> Source:
        return Source(str(one["code"]), tuple(one["constants"]), tuple(one["sides"]))

    extra = {name: source(data[name]) if data[name] is not None else None for name in ("prologue", "tail", "to_head")}
    return Cut(tuple(data["inputs"]), segments=tuple(map(source, data["segments"])), mask=data["mask"], **extra)


def load_ramps(
    folder: Path, described: Sequence[Mapping[str, Any]], device: torch.device, tail: Tail | None = None
) -> tuple[RampHead, ...]:
    """The ramps of a folder; `described` is the catalog's list. Raises InvalidPrepared."""
    tensors = _tensors(folder / RAMPS, device)
    heads = []
    for r, one in enumerate(described):
        try:
            shape = RampShape(int(one["dimensions"]), one["pooling"], bool(one["masked"]))
            weight, bias = tensors[f"{r}.weight"], tensors[f"{r}.bias"]
            heads.append(RampHead(shape, weight, bias, float(tensors[f"{r}.temperature"]), tail))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else f"cannot be read: {error}"
            raise InvalidPrepared(f"{folder / RAMPS}: ramp {r} {what}") from None
    return tuple(heads)


def _tensors(path: Path, device: torch.device, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """All tensors of a file, or some."""
    try:
        if names is not None:
            with safe_open(str(path), "pt", device=str(device)) as file:
                return {name: file.get_tensor(name).clone() for name in names}
        # Cloned: in the file tensors stand at odd addresses, and the same product on another alignment differs in bits.
        return {name: value.clone() for name, value in load_file(str(path), device=str(device)).items()}
    except (OSError, SafetensorError) as error:
        raise InvalidPrepared(f"{path} cannot be read: {error}") from error


def publish(partial: Path, folder: Path, catalog: RampCatalog) -> RampCatalog:
    """Give a finished partial folder its digest and put it in place of `folder`, in one rename. Returns the catalog."""
    files = (*FILES, *files_of(catalog.extra.get("backend", {})))
    content = catalog.to_json() | {"files": {name: source_sha256(partial / name) for name in files}}
    content["digest"] = _digest(content)
    (partial / CATALOG).write_text(json.dumps(content, indent=1), encoding="utf-8")
    for extra in {p.name for p in partial.iterdir()} - {CATALOG, *files}:
        (partial / extra).unlink()
    for name in (CATALOG, *files):
        with (partial / name).open("rb") as file:
            os.fsync(file.fileno())
    old = folder.with_name(f".{folder.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    _sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
    return RampCatalog.from_json(content)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(content: Mapping[str, Any]) -> str:
    """SHA-256 over the catalog without its digest; the catalog names the digests of the other files."""
    covered = {k: v for k, v in content.items() if k != "digest"}
    return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def read_catalog(folder: Path) -> RampCatalog:
    """The catalog of a prepared folder, its own digest and its files checked. Raises InvalidPrepared."""
    _check_whole(folder)
    try:
        content = json.loads((folder / CATALOG).read_text(encoding="utf-8"))
        catalog = RampCatalog.from_json(content)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, InvalidCatalog) as error:
        raise InvalidPrepared(f"{folder / CATALOG} cannot be read: {error}") from error
    if content.get("digest") != _digest(content):
        raise InvalidPrepared(f"{folder / CATALOG} was changed after it was prepared: its digest does not match")
    for name in (*FILES, *files_of(catalog.extra.get("backend", {}))):
        try:
            found = source_sha256(folder / name)
        except OSError as error:
            raise InvalidPrepared(f"{folder / name} cannot be read: {error.strerror}") from error
        if found != dict(content.get("files", {})).get(name):
            raise InvalidPrepared(f"{folder / name} was changed after it was prepared: its digest does not match")
    return catalog


def _check_whole(folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidPrepared(f"{folder} does not exist: prepare the model first (apparate prepare -f ...)")
    missing = [name for name in (CATALOG, *FILES) if not (folder / name).is_file()]
    if missing:
        raise InvalidPrepared(f"{folder} is not a whole prepared model: it has no {', '.join(missing)}")


def load_prepared(folder: Path, document: Document, device: torch.device) -> PreparedModel:
    """The prepared model of a document.

    Raises InvalidPrepared when the folder is missing, half-written or changed, or was prepared for a model with other
    inputs than the document's.
    """
    _check_whole(folder)
    check_room(str(folder), _weights(folder), device)
    catalog = read_catalog(folder)
    extra = catalog.extra
    try:
        inputs = tuple(TensorSpec.model_validate(one) for one in extra["inputs"])
        output, classes, described = str(extra["output"]), tuple(extra["classes"]), extra["ramps"]
    except (KeyError, TypeError, ValidationError) as error:
        raise InvalidPrepared(f"{folder / CATALOG} does not describe a model: {error}") from error
    wanted = document.model.spec.model
    if inputs != wanted.inputs:
        raise InvalidPrepared(f"{folder} was prepared for other inputs than the document has: prepare the model again")
    model, heads = _running(folder, catalog, described, document.model.spec.serving.threads, device)
    if not len(heads) == catalog.ramps == len(model.segments) - 1:
        raise InvalidPrepared(
            f"{folder} has {len(heads)} ramps, {catalog.ramps} latencies, {len(model.segments)} segments"
        )
    _check_fits(folder, model, heads, {spec.name: _harmless(spec, device) for spec in inputs})
    return PreparedModel(catalog, model, heads, inputs, output, classes)


def _weights(folder: Path) -> int:
    """Bytes of weights that a worker holds of a folder. ONNX Runtime maps its file and repacks it twice: for what the
    plan hears, and for all."""
    graph = folder / GRAPH_WEIGHTS
    copies = 2 * graph.stat().st_size if graph.is_file() else (folder / MODEL).stat().st_size
    return copies + (folder / RAMPS).stat().st_size


def _running(
    folder: Path, catalog: RampCatalog, described: Sequence[Mapping[str, Any]], threads: int, device: torch.device
) -> tuple[Any, tuple[Any, ...]]:
    """Model and ramps in the back end that the folder was prepared for, or as they are where it cannot run.

    A folder without a word of back ends was prepared before there were any. Raises InvalidPrepared.
    """
    backend = dict(catalog.extra.get("backend", {}))
    name = backend.get("name", EAGER)
    try:
        if name == ONNX:
            return _in_onnx(folder, catalog, backend, described, threads)
        model, tail = load_backbone(folder, device)
        heads = load_ramps(folder, described, device, tail)
        return (with_compiled(model, folder, backend["machine"], device) if name == COMPILE else model), heads
    except UnsupportedModel as error:
        if name == EAGER:
            raise
        log.warning("the back end cannot run here, torch runs the model instead", backend=name, error=str(error))
    model, tail = load_backbone(folder, device)
    return model, load_ramps(folder, described, device, tail)


def _in_onnx(
    folder: Path,
    catalog: RampCatalog,
    backend: Mapping[str, Any],
    described: Sequence[Mapping[str, Any]],
    threads: int,
) -> tuple[Any, tuple[Any, ...]]:
    """Of the weights in torch's file only those of the tail are read."""
    host, text = torch.device("cpu"), load_text(folder)
    tail = None
    if text.tail is not None:
        tail = Tail.of(text.tail, _tensors(folder / MODEL, host, text.tail.constants), host)
    return in_onnx(
        folder,
        backend["sites"],
        load_ramps(folder, described, host, tail),
        inputs=text.inputs,
        mask_input=text.inputs[text.mask] if text.mask is not None else None,
        threads=threads,
        reach_ms=catalog.reach_ms[0].tolist(),
    )


def _check_fits(folder: Path, model: Any, heads: Sequence[Any], inputs: Mapping[str, Tensor]) -> None:
    """Run one item through, so that files that do not fit each other are found by name. Raises InvalidPrepared."""
    culprit = folder / MODEL
    try:
        with torch.inference_mode():
            state = model.start(inputs, tuple((r, True) for r in range(len(heads))))
            said = []
            for k, head in enumerate(heads):
                culprit = folder / MODEL
                state = model.advance(k, state)
                culprit = folder / RAMPS
                said.append(head.answer(model.site(state), model.mask(state)).shape)
            culprit = folder / MODEL
            scores = model.output(model.advance(len(heads), state))
    except Exception as error:
        raise InvalidPrepared(f"{culprit} does not fit {SEGMENTS}: {words_of(error)}") from error
    for r, shape in enumerate(said):
        if shape != scores.shape:
            raise InvalidPrepared(f"{folder / RAMPS}: ramp {r} says {list(shape)}, the model {list(scores.shape)}")


def _harmless(spec: TensorSpec, device: torch.device) -> Tensor:
    """One item: ones, which are a token, an unmasked place, a number."""
    shape = [1, *(min(spec.max_size, HARMLESS_SIZE) if size == -1 else size for size in spec.shape)]
    if spec.datatype == "BYTES":
        return torch.ones([*shape, min(spec.max_size, HARMLESS_SIZE)], dtype=torch.uint8, device=device)
    return torch.ones(shape, dtype=dtype_of(spec), device=device)


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the names and bytes of some tensors."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{value.dtype}\0{list(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
