"""A preparation from the document to the published folder, in stages that are not done twice."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from apparate.catalog import InvalidCatalog, RampCatalog
from apparate.contract.document import Document
from apparate_worker.model.cutting import cut
from apparate_worker.model.errors import InvalidPrepared, InvalidProfile, UnsupportedModel
from apparate_worker.model.graph import sites, trace
from apparate_worker.model.memory import keep_freed_memory
from apparate_worker.model.ramps import RampHead, RampShape, Tail, describe
from apparate_worker.model.segments import SegmentedModel, assemble, compile_source
from apparate_worker.model.sources import load_source, source_sha256
from apparate_worker.model.store import (
    load_cut,
    load_ramps,
    publish,
    read_catalog,
    save_backbone,
    save_ramps,
    weights_sha256,
)
from apparate_worker.prepare.bootstrap import BootstrapData, load_bootstrap
from apparate_worker.prepare.features import candidates, gather, records_that_fit
from apparate_worker.prepare.profiling import affordable, batch_sizes, pooling_costs, profile
from apparate_worker.prepare.progress import Progress, Step, quiet
from apparate_worker.prepare.training import train

VERSION = 1  # rises when the same inputs would be prepared differently
KEY, BACKBONE, RAMPS, CHECKED = "key.json", "backbone.json", "ramps.json", (1, 2, 3)
PROFILE_TRIES = 3


@dataclass(frozen=True, eq=False)
class Job:
    """One preparation: what is prepared, on what, into which folder, and who is told."""

    document: Document
    device: torch.device
    partial: Path
    key: str
    tell: Progress

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[float], None]]:
        """Tell of one stage: its share done, and at the end how long it took."""
        began = time.monotonic()
        self.tell(Step(name, 0.0))
        yield lambda share: self.tell(Step(name, min(share, 1.0)))
        self.tell(Step(name, 1.0, f"{time.monotonic() - began:.1f} s"))

    def finished(self, marker: str) -> dict[str, Any] | None:
        """What a stage left behind when it finished in an earlier run, or None."""
        path = self.partial / marker
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def finish(self, marker: str, content: Mapping[str, Any]) -> None:
        """Mark a stage as finished, for a later run that resumes."""
        fresh = self.partial / f".{marker}"
        fresh.write_text(json.dumps(content), encoding="utf-8")
        fresh.rename(self.partial / marker)


def prepare(document: Document, *, progress: Progress = quiet, force: bool = False) -> RampCatalog:
    """Prepare the model of a document; returns its catalog.

    Does nothing when the folder holds the result of the very same inputs, unless `force`. A run that was stopped is
    resumed after its last finished stage. Raises ModelError that names what is wrong.
    """
    spec = document.model.spec
    device = torch.device(_device(spec.serving.device))
    torch.set_num_threads(spec.serving.threads)
    with _alone(document.prepared, progress):
        return _prepare(document, device, progress, force)


def _prepare(document: Document, device: torch.device, progress: Progress, force: bool) -> RampCatalog:
    spec, folder = document.model.spec, document.prepared
    data = load_bootstrap(document.bootstrap_data, spec.model.inputs, spec.bootstrap.max_records)
    key = preparation_key(document, device)
    if not force and (done := _done(folder, key)) is not None:
        progress(Step("ready", 1.0, f"{folder} is prepared already"))
        return done
    keep_freed_memory()  # as the worker does: what is measured here is what it will take there
    partial = _partial_folder(folder, key, force)
    job = Job(document, device, partial, key, progress)
    backbone = _backbone(job, data)
    ramps = _ramps(job, data)
    catalog = _profile(job, data, ramps)
    extra = _about(job, data, backbone, ramps)
    catalog = RampCatalog.from_json(catalog.to_json() | extra)
    published = publish(partial, folder, catalog)
    progress(Step("ready", 1.0, f"{folder}: {published.ramps} ramps, digest {published.digest[:12]}"))
    return published


@contextmanager
def _alone(folder: Path, tell: Progress) -> Iterator[None]:
    """Only one process prepares into a folder at a time; another waits and then finds the work done."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f".{folder.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(Step("waiting", 0.0, f"another process is preparing {folder}"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    return "cuda" if torch.cuda.is_available() else "cpu"


def preparation_key(document: Document, device: torch.device) -> str:
    """SHA-256 of everything that a prepared model depends on: documents' settings, files, device and versions."""
    spec = document.model.spec
    source = source_sha256(document.source) if document.source.exists() else ""  # loading says what is wrong with it
    content = {
        "version": VERSION,
        "torch": torch.__version__,
        "model": spec.model.model_dump(mode="json"),
        "bootstrap": spec.bootstrap.model_dump(mode="json"),
        "overhead": spec.budget.ramp_overhead,
        "serving": [spec.serving.max_batch, spec.serving.threads, str(device)],
        "source": source,
        "data": source_sha256(document.bootstrap_data),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _done(folder: Path, key: str) -> RampCatalog | None:
    """The catalog in place, if it is whole and of the same inputs."""
    try:
        catalog = read_catalog(folder)
    except InvalidPrepared:
        return None
    return catalog if catalog.extra.get("key") == key else None


def _partial_folder(folder: Path, key: str, force: bool) -> Path:
    """The folder this preparation works in: of an earlier run of the same inputs if it was stopped, else empty."""
    partial = folder.with_name(f".{folder.name}.partial")
    marker = partial / KEY
    same = marker.is_file() and json.loads(marker.read_text(encoding="utf-8")) == key
    if force or not same:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        marker.write_text(json.dumps(key), encoding="utf-8")
    return partial


def _backbone(job: Job, data: BootstrapData) -> dict[str, Any]:
    """Stage 1: load and trace the model, find its sites, cut it, and check that the parts equal the whole."""
    if (found := job.finished(BACKBONE)) is not None:
        return found
    with job.stage("sites") as step:
        specs = job.document.model.spec.model.inputs
        model = load_source(job.document).to(job.device)
        before = weights_sha256(model.state_dict())
        step(0.2)
        names = [spec.name for spec in specs]
        example = [data.take(range(2), job.device)[name] for name in names]
        graph = trace(model, example, specs)
        at = sites(graph)
        pieces = cut(graph, at, names, data.mask)
        constants = {node.name: value for node, value in graph.constants.items()}
        step(0.7)
        running = assemble(pieces, constants, job.device)
        for size in CHECKED:
            inputs = data.take(range(size), job.device)
            with torch.inference_mode(), _one_attention():
                _same(model(*[inputs[name] for name in names]), running(inputs), size, job.device)
        if weights_sha256(model.state_dict()) != before:
            raise UnsupportedModel("the model changed its own weights while it ran: it cannot be served")
        save_backbone(job.partial, constants, pieces)
        layers = [layer_name(node) for node in at]
        found = {"layers": layers, "weights": before, "shapes": [_shape(node.meta["val"]) for node in at]}
        job.finish(BACKBONE, found)
    return found


@contextmanager
def _one_attention() -> Iterator[None]:
    """torch's attention module with the operators that are traced; left alone it takes fused ones in some calls."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def layer_name(node: torch.fx.Node) -> str:
    """What people call a site: the module whose output it is, with the operator."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    path = path.removeprefix("L['self'].").removeprefix("model.").removeprefix("model")
    return f"{path}.{node.name}".strip(".")


def _shape(value: torch.Tensor) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in value.shape]


def _same(whole: torch.Tensor, parts: torch.Tensor, size: int, device: torch.device) -> None:
    """Bit for bit on a CPU; elsewhere as near as kernels that are chosen at run time can be."""
    equal = torch.equal(whole, parts) if device.type == "cpu" else torch.allclose(whole, parts, rtol=1e-3, atol=1e-3)
    if not equal and not (whole.isnan() & parts.isnan()).any():
        raise UnsupportedModel(f"run in segments the model gives other scores for a batch of {size}: it cannot be cut")


def _ramps(job: Job, data: BootstrapData) -> list[dict[str, Any]]:
    """Stage 2: one pass over the bootstrap data, then all ramps trained on what was kept of it."""
    if (found := job.finished(RAMPS)) is not None:
        return list(found["ramps"])
    spec = job.document.model.spec
    pieces, constants = load_cut(job.partial, job.device)
    model = assemble(pieces, constants, job.device)
    shapes, widths = _affordable(job, model, data)
    records = records_that_fit(width for one in widths for width in one)
    with job.stage("features") as step:
        source = pieces.to_head
        to_head = (compile_source(source, constants, job.device), source.sides) if source is not None else None
        features = gather(model, to_head, shapes, data.head(records), job.device, step)
    tail = Tail.of(pieces.tail, constants, job.device) if pieces.tail is not None else None
    with job.stage("training") as step:
        trained = train(features, shapes, tail.on_host if tail is not None else None, spec.bootstrap.epochs, step)
    heads = [RampHead(t.shape, t.weight, t.bias, t.temperature) for t in trained]
    save_ramps(job.partial, heads)
    described = [
        describe(head) | {"agreement": one.agreement, "exits_at_1_percent_loss": one.exits}
        for head, one in zip(heads, trained, strict=True)
    ]
    job.finish(RAMPS, {"ramps": described})
    return described


def _affordable(job: Job, model: SegmentedModel, data: BootstrapData) -> tuple[list[list[RampShape]], list[list[int]]]:
    """By site: the poolings whose cost the ramp budget bears, and how many values each hands on."""
    spec = job.document.model.spec
    inputs = data.take(range(2), job.device)
    shapes: list[list[RampShape]] = []
    widths: list[list[int]] = []
    with torch.inference_mode():
        state = model.start(inputs)
        for r in range(len(model.segments) - 1):
            value, mask = model.site(model.advance(r, state)), model.mask(state)
            shapes.append(candidates(value, mask))
            none = torch.zeros(2, 1, device=job.device)
            heads = [RampHead(shape, none, none[:, 0], 1.0) for shape in shapes[-1]]
            widths.append([head.pool(value, mask).shape[1] for head in heads])
    sizes = tuple(sorted({1, spec.serving.max_batch}))
    costs, full = pooling_costs(model, shapes, widths, data, sizes, job.device)
    chosen = [affordable(cost, full, spec.budget.ramp_overhead) for cost in costs]
    return (
        [[one[s] for s in kept] for one, kept in zip(shapes, chosen, strict=True)],
        [[one[s] for s in kept] for one, kept in zip(widths, chosen, strict=True)],
    )


def _profile(job: Job, data: BootstrapData, described: Sequence[Mapping[str, Any]]) -> RampCatalog:
    """Stage 3: latencies by batch size."""
    pieces, constants = load_cut(job.partial, job.device)
    model = assemble(pieces, constants, job.device)
    tail = Tail.of(pieces.tail, constants, job.device) if pieces.tail is not None else None
    heads = load_ramps(job.partial, described, job.device, tail)
    sizes = batch_sizes(job.document.model.spec.serving.max_batch)
    with job.stage("latencies") as step:
        for attempt in range(PROFILE_TRIES):
            try:
                found = profile(model, heads, data, sizes, job.device, step)
                return RampCatalog(found.batch_sizes, found.reach_ms, found.overhead_ms, found.full_ms)
            except (InvalidProfile, InvalidCatalog) as error:
                problem = InvalidProfile(str(error))
                job.tell(Step("latencies", 0.0, f"measured again, attempt {attempt + 2}: {error}"))
        raise problem


def _about(
    job: Job, data: BootstrapData, backbone: Mapping[str, Any], ramps: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the catalog says besides latencies."""
    wanted = job.document.model.spec.model
    named = [
        dict(ramp) | {"layer": layer, "shape": shape}
        for ramp, layer, shape in zip(ramps, backbone["layers"], backbone["shapes"], strict=True)
    ]
    return {
        "key": job.key,
        "layers": list(backbone["layers"]),
        "inputs": [spec.model_dump(by_alias=True, mode="json") for spec in wanted.inputs],
        "output": wanted.output,
        "classes": list(wanted.classes),
        "task": wanted.task,
        "ramps": named,
        "weights_sha256": backbone["weights"],
        "bootstrap_records": len(data),
        "prepared_on": f"{platform.machine()}, {os.cpu_count()} CPUs, {job.device}, torch {torch.__version__}",
    }
