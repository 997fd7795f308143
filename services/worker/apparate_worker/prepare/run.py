"""A preparation from the document to the published folder, in stages that are not done twice."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from apparate.catalog import InvalidCatalog, RampCatalog
from apparate.contract.document import Document
from apparate_worker.model.backends import COMPILE, EAGER, ONNX
from apparate_worker.model.cutting import cut, keep
from apparate_worker.model.errors import InvalidPrepared, InvalidProfile, UnsupportedModel
from apparate_worker.model.graph import sites, trace
from apparate_worker.model.memory import keep_freed_memory
from apparate_worker.model.ramps import RampHead, RampShape, Tail, describe
from apparate_worker.model.segments import assemble, compile_source
from apparate_worker.model.sources import check_sha256, load_source
from apparate_worker.model.store import (
    load_cut,
    load_ramps,
    publish,
    read_catalog,
    save_backbone,
    save_cut,
    save_ramps,
    weights_sha256,
)
from apparate_worker.prepare.backends import (
    ASKED_FOR,
    at_every_site,
    choose_backend,
    described,
    measurable,
    site_names,
    with_segments,
)
from apparate_worker.prepare.bootstrap import BootstrapData, load_bootstrap
from apparate_worker.prepare.choosing import choose
from apparate_worker.prepare.features import candidates, gather, records_that_fit
from apparate_worker.prepare.inputs import as_fields, device_named, is_made_of, made_of, preparation_key, resume_key
from apparate_worker.prepare.job import Job, alone, partial_folder
from apparate_worker.prepare.profiling import affordable, batch_sizes, pooling_costs, profile
from apparate_worker.prepare.progress import Progress, Step, quiet
from apparate_worker.prepare.training import TrainedRamp, train

BACKBONE, BACKEND, RAMPS, COMPILED = "backbone.json", "backend.json", "ramps.json", "compiled.json"
CHECKED = (1, 2, 3)  # batch sizes at which the parts are compared with the whole
PROFILE_TRIES = 3
ALL_SITES = "sites.json"  # the model cut at every site, of which the published one keeps some
CHOOSING_S = 4.0  # of measuring before the choice; the catalog's latencies are measured after it


def prepare(document: Document, *, progress: Progress = quiet, force: bool = False) -> RampCatalog:
    """Prepare the model of a document; returns its catalog.

    Does nothing when the folder holds the result of the very same inputs, unless `force`. A run that was stopped is
    resumed after its last finished stage. Raises ModelError that names what is wrong.
    """
    spec = document.model.spec
    if spec.model.task != "classification":
        raise UnsupportedModel(f"spec.model.task is {spec.model.task}: this version serves only classification")
    device = torch.device(device_named(spec.serving.device))
    torch.set_num_threads(spec.serving.threads)
    with alone(document.prepared, progress):
        return _prepare(document, device, progress, force)


def _prepare(document: Document, device: torch.device, progress: Progress, force: bool) -> RampCatalog:
    spec, folder = document.model.spec, document.prepared
    data = load_bootstrap(document.bootstrap_data, spec.model.inputs, spec.bootstrap.max_records)
    check_sha256(document.bootstrap_data, spec.bootstrap.sha256)
    content = made_of(document, device)
    key, resume, inputs = preparation_key(content), resume_key(content), as_fields(content)
    if not force and (done := _done(folder, content)) is not None:
        progress(Step("ready", 1.0, f"{folder} is prepared already"))
        return done
    keep_freed_memory()  # as the worker does: what is measured here is what it will take there
    try:
        return _run(Job(document, device, partial_folder(folder, resume, force), key, progress, inputs), data)
    except InvalidPrepared as error:  # what a run that was stopped left behind is damaged
        progress(Step("sites", 0.0, f"begun anew: {error}"))
        return _run(Job(document, device, partial_folder(folder, resume, True), key, progress, inputs), data)


def _run(job: Job, data: BootstrapData) -> RampCatalog:
    """Every stage that is not finished, and the folder in its place. Raises InvalidPrepared when it resumes from a
    damaged one."""
    folder = job.document.prepared
    backbone = _backbone(job, data)
    backend = _backend(job, data)
    ramps = _ramps(job, data, backbone, backend)
    if backend["name"] == COMPILE:
        backend = _compiled(job, data, backend)
    catalog = _profile(job, data, ramps, backend)
    extra = _about(job, data, backbone, ramps) | {"backend": _for_catalog(backend, ramps)}
    catalog = RampCatalog.from_json(catalog.to_json() | extra)
    published = publish(job.partial, folder, catalog)
    job.tell(Step("ready", 1.0, f"{folder}: {published.ramps} ramps, digest {published.digest[:12]}"))
    return published


def _done(folder: Path, content: Mapping[str, Any]) -> RampCatalog | None:
    """The catalog in place, if it is whole and of the same inputs."""
    try:
        catalog = read_catalog(folder)
    except InvalidPrepared:
        return None
    return catalog if is_made_of(catalog, content) else None


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
        save_cut(job.partial, pieces, ALL_SITES)
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


def _backend(job: Job, data: BootstrapData) -> dict[str, Any]:
    """Stage 2: what will run the segments, so that ramps learn from what is served."""
    if (found := job.finished(BACKEND)) is not None:
        return found
    if job.document.model.spec.serving.backend == EAGER:
        return described(EAGER, ASKED_FOR)
    pieces, constants = load_cut(job.partial, job.device, ALL_SITES)
    with job.stage("backend"):
        found = choose_backend(job, data, pieces, constants)
        job.finish(BACKEND, found)
    return found


def _compiled(job: Job, data: BootstrapData, backend: dict[str, Any]) -> dict[str, Any]:
    """The segments between the ramps that are kept, compiled and compared with torch's once more."""
    if (found := job.finished(COMPILED)) is not None:
        return found
    asked = job.document.model.spec.serving.backend == COMPILE
    pieces, constants = load_cut(job.partial, job.device)
    with job.stage("compiling"):
        found = with_segments(job, data, pieces, constants, backend, asked=asked)
        job.finish(COMPILED, found)
    return found


def _for_catalog(backend: Mapping[str, Any], ramps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the catalog says of the back end; for ONNX also which values of the graph the ramps sit at."""
    more = {"sites": site_names(ramp["site"] for ramp in ramps)} if backend["name"] == ONNX else {}
    return {**backend, **more}


def _ramps(
    job: Job, data: BootstrapData, backbone: Mapping[str, Any], backend: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Stage 3: one pass over the bootstrap data, all ramps trained on what was kept of it, the useful ones chosen."""
    if (found := job.finished(RAMPS)) is not None:
        return list(found["ramps"])
    spec = job.document.model.spec
    pieces, constants = load_cut(job.partial, job.device, ALL_SITES)
    model = at_every_site(job, backend, pieces, constants)
    shapes, widths = _affordable(job, model, data)
    records = records_that_fit(width for one in widths for width in one)
    with job.stage("features") as step:
        source = pieces.to_head
        to_head = (compile_source(source, constants, job.device), source.sides) if source is not None else None
        features = gather(model, to_head, shapes, data.head(records), job.device, step)
    tail = Tail.of(pieces.tail, constants, job.device) if pieces.tail is not None else None
    with job.stage("training") as step:
        trained = train(features, shapes, tail.on_host if tail is not None else None, spec.bootstrap.epochs, step)
    heads = [_head(one, tail, job.device) for one in trained]
    sizes = tuple(sorted({1, spec.serving.max_batch}))
    with job.stage("choosing") as step:
        cut_up, ramps, more = measurable(job, backend, pieces, constants, heads, range(len(heads)))
        rough = profile(cut_up, ramps, data, sizes, job.device, step, budget_s=CHOOSING_S, in_graph=more)
        chosen = choose(rough, torch.stack([one.leaves for one in trained], 1).numpy())
    save_cut(job.partial, keep(pieces, chosen))
    save_ramps(job.partial, [heads[r] for r in chosen])
    described = [
        describe(heads[r])
        | {
            "site": r,
            "layer": backbone["layers"][r],
            "shape": backbone["shapes"][r],
            "agreement": trained[r].agreement,
            "exits_at_1_percent_loss": trained[r].exits,
        }
        for r in chosen
    ]
    job.finish(RAMPS, {"ramps": described})
    return described


def _head(one: TrainedRamp, tail: Tail | None, device: torch.device) -> RampHead:
    return RampHead(one.shape, one.weight.to(device), one.bias.to(device), one.temperature, tail)


def _affordable(job: Job, model: Any, data: BootstrapData) -> tuple[list[list[RampShape]], list[list[int]]]:
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


def _profile(
    job: Job, data: BootstrapData, described: Sequence[Mapping[str, Any]], backend: Mapping[str, Any]
) -> RampCatalog:
    """Stage 4: latencies by batch size."""
    pieces, constants = load_cut(job.partial, job.device)
    tail = Tail.of(pieces.tail, constants, job.device) if pieces.tail is not None else None
    heads = load_ramps(job.partial, described, job.device, tail)
    sites = [ramp["site"] for ramp in described]
    model, ramps, more = measurable(job, backend, pieces, constants, heads, sites)
    sizes = batch_sizes(job.document.model.spec.serving.max_batch)
    with job.stage("latencies") as step:
        for attempt in range(PROFILE_TRIES):
            try:
                found = profile(model, ramps, data, sizes, job.device, step, in_graph=more)
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
    return {
        "key": job.key,
        "made_of": job.inputs,
        "layers": [ramp["layer"] for ramp in ramps],
        "inputs": [spec.model_dump(by_alias=True, mode="json") for spec in wanted.inputs],
        "output": wanted.output,
        "classes": list(wanted.classes),
        "task": wanted.task,
        "ramps": list(ramps),
        "sites": list(backbone["layers"]),
        "weights_sha256": backbone["weights"],
        "bootstrap_records": len(data),
        "prepared_on": f"{platform.machine()}, {os.cpu_count()} CPUs, {job.device}, torch {torch.__version__}",
    }
