"""Which back end a model is prepared for: the fastest of those that answer as torch does.

Ramps are trained on what will be served, so this is settled before. Each candidate is compared with torch on bootstrap
records, and one that changes answers is refused; those left are measured in turns, whole passes without ramps at every
batch size that is profiled.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apparate_worker.model.backends import COMPILE, EAGER, ONNX, has_onnx, in_onnx, machine_of, with_compiled
from apparate_worker.model.cutting import Cut, keep
from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.ramps import RampHead
from apparate_worker.model.segments import SegmentedModel, State, assemble
from apparate_worker.prepare.bootstrap import BootstrapData
from apparate_worker.prepare.compiling import compile_segments, compiler, load_whole
from apparate_worker.prepare.job import Job
from apparate_worker.prepare.profiling import InGraph, batch_sizes
from apparate_worker.prepare.progress import Step

MOST_CHANGED = 0.001  # share of records whose answer may change: near-ties, which rounding decides
TOLERANCE = 1e-3  # most that a score may differ, in standard deviations of the model's scores
RECORDS, BATCH = 1000, 16  # that are compared, evenly over the bootstrap data
COMPARE_S = 10.0  # longest time to compare one candidate, once LEAST_RECORDS are done
LEAST_RECORDS = 64
MEASURE_S, LEAST_ROUNDS, MOST_ROUNDS = 4.0, 5, 60
QUANTILE = 0.25  # of the rounds, as for the profile
COMPILE_S = 90.0  # longest time to compile a candidate that nobody asked for
LEAST_GAIN = 0.03  # another back end than torch must be faster by this share
NEEDS = "a C++ compiler (g++ or clang++), and on a GPU Triton"
ASKED_FOR = "spec.serving.backend asks for it"
Run = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Candidate:
    """What was found of one back end, for the catalog."""

    backend: str
    ms: tuple[float, ...] = ()
    """A whole pass without ramps, by batch size; empty when it was not measured."""
    records: int = 0
    """Compared with torch."""
    changed: int = 0
    """Of them got another answer."""
    difference: float = 0.0
    """Largest of a score, in standard deviations of the model's scores."""
    refused: str = ""
    """Why it cannot be chosen."""


def choose_backend(job: Job, data: BootstrapData, pieces: Cut, constants: Mapping[str, Tensor]) -> dict[str, Any]:
    """The back end for the catalog: name, reason, candidates with their figures. Its files are in the working folder.

    Raises UnsupportedModel when the document names one that cannot be had or that changes answers.
    """
    wanted = job.document.model.spec.serving.backend
    if wanted == COMPILE:  # its segments are compiled, compared and measured once it is known which ramps there are
        if not compiler(job.device):
            raise UnsupportedModel(f"spec.serving.backend is {wanted}, which needs {NEEDS}; take auto or eager")
        return described(COMPILE, ASKED_FOR)
    eager: Run = assemble(keep(pieces, []), constants, job.device)
    runs: dict[str, Run] = {EAGER: eager}
    tried = {EAGER: Candidate(EAGER)}
    for name, make in _makers(job, wanted).items():
        if len(runs) > 1:
            break
        _say(job, f"{name}: made, compared and measured")
        try:
            run = make(job, data, pieces, constants)
            tried[name] = compare(name, eager, run, data, job.device)
        except UnsupportedModel as error:
            tried[name] = Candidate(name, refused=str(error))
        if not tried[name].refused:
            runs[name] = run
        elif wanted == name:
            raise UnsupportedModel(f"spec.serving.backend is {wanted}: {tried[name].refused}; take auto or eager")
    sizes = batch_sizes(job.document.model.spec.serving.max_batch)
    times = measure(runs, data, sizes, job.device) if len(runs) > 1 else {}
    found = [replace(one, ms=times.get(name, ())) for name, one in tried.items()]
    name, reason = fastest(found, sizes) if wanted == "auto" else (wanted, ASKED_FOR)
    _say(job, f"{name}: {reason}")
    return described(name, reason, found)


def _say(job: Job, message: str) -> None:
    job.tell(Step("backend", 0.5, message))


def described(name: str, reason: str, found: Sequence[Candidate] = ()) -> dict[str, Any]:
    """What the catalog says of a back end, before its files are known."""
    return {"name": name, "reason": reason, "candidates": [asdict(one) for one in found]}


def _makers(job: Job, wanted: str) -> dict[str, Callable[..., Run]]:
    """The candidates beside torch, in order: the first that can be had and answers alike is measured. torch.compile
    takes long, and on a CPU ONNX Runtime was faster wherever both were measured, so there it comes second."""
    if wanted == ONNX:
        return {ONNX: _onnx}
    return {ONNX: _onnx, COMPILE: _compiled} if job.device.type == "cpu" else {COMPILE: _compiled}


def _onnx(job: Job, data: BootstrapData, pieces: Cut, constants: Mapping[str, Tensor]) -> Run:
    if job.device.type != "cpu":
        raise UnsupportedModel(f"ONNX Runtime runs models on a CPU here, the device is {job.device}")
    if not has_onnx():
        raise UnsupportedModel("onnxruntime and onnx are not installed")
    from apparate_worker.model import onnx_graph
    from apparate_worker.model.onnx_model import OnnxModel
    from apparate_worker.prepare.exporting import to_onnx

    spec = job.document.model.spec
    example = data.take(range(2), job.device)
    graph = to_onnx(pieces, constants, [example[name] for name in pieces.inputs], spec.model.inputs)
    onnx_graph.save(graph, job.partial)
    try:
        return OnnxModel(
            onnx_graph.load(job.partial, site_names(range(len(pieces.segments) - 1))),
            inputs=pieces.inputs,
            mask_input=pieces.inputs[pieces.mask] if pieces.mask is not None else None,
            ramps=0,
            threads=spec.serving.threads,
        )
    except Exception as error:
        raise UnsupportedModel(f"ONNX Runtime cannot load it: {str(error).strip().splitlines()[0][:200]}") from error


def _compiled(job: Job, data: BootstrapData, pieces: Cut, constants: Mapping[str, Tensor]) -> Run:
    """The whole model as one; its segments are compiled once it is known which ramps there are."""
    if not compiler(job.device):
        raise UnsupportedModel(f"torch.compile needs {NEEDS}")
    whole = keep(pieces, [])
    compile_segments(job, data, whole, constants, within_s=COMPILE_S)
    found: Run = load_whole(job, whole, constants)
    return found


def with_segments(
    job: Job,
    data: BootstrapData,
    pieces: Cut,
    constants: Mapping[str, Tensor],
    backend: Mapping[str, Any],
    *,
    asked: bool,
) -> dict[str, Any]:
    """The catalog's back end once the segments of `pieces` are compiled; torch in its place if that fails and nobody
    asked for it. Raises UnsupportedModel."""
    eager: Run = assemble(keep(pieces, []), constants, job.device)
    try:
        compile_segments(job, data, pieces, constants, within_s=None if asked else COMPILE_S * len(pieces.segments))
        found = compare(COMPILE, eager, load_whole(job, pieces, constants), data, job.device)
        if found.refused:
            raise UnsupportedModel(found.refused)
    except UnsupportedModel as error:
        if asked:
            raise UnsupportedModel(f"spec.serving.backend is compile: {error}; take auto or eager") from error
        return described(EAGER, f"compile: {error}", [Candidate(EAGER), Candidate(COMPILE, refused=str(error))])
    machine = machine_of(job.device)
    return {**backend, "machine": machine, "segments": len(pieces.segments), "parity": asdict(found)}


def compare(name: str, eager: Run, run: Run, data: BootstrapData, device: torch.device) -> Candidate:
    """A candidate beside torch on bootstrap records, refused when it changes more answers or scores than it may.

    Raises UnsupportedModel where it does not run.
    """
    rows = np.unique(np.linspace(0, len(data) - 1, min(len(data), RECORDS)).astype(np.int64))
    shuffled = np.random.default_rng(0).permutation(rows)
    expected, found, began = [], [], time.monotonic()
    begins = [0, *range(1, len(shuffled), BATCH), len(shuffled)]  # one alone: what is compiled for several may be wrong
    try:
        with torch.inference_mode():
            for begin, end in itertools.pairwise(begins):
                inputs = data.take(np.sort(shuffled[begin:end]), device)
                expected.append(eager(inputs).float().cpu())
                found.append(run(inputs).float().cpu())
                if time.monotonic() - began > COMPARE_S and end >= LEAST_RECORDS:
                    break
    except Exception as error:  # a runtime's own classes
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedModel(f"it fails on bootstrap data: {words[0][:200]}") from error
    return parity(name, torch.cat(expected), torch.cat(found))


def parity(name: str, expected: Tensor, found: Tensor) -> Candidate:
    """What scores [N, C] of a candidate are beside the model's own."""
    changed = int((expected.argmax(1) != found.argmax(1)).sum())
    spread = max(float(expected.std()), 1e-12)
    difference = float((expected - found).abs().max()) / spread
    refused = ""
    if changed > MOST_CHANGED * len(expected):
        refused = f"it changes {changed} of {len(expected)} answers, allowed are {MOST_CHANGED:.1%} of them"
    elif not difference <= TOLERANCE:  # not a number fails too
        refused = f"a score differs by {difference:.2g} standard deviations, allowed are {TOLERANCE:g}"
    return Candidate(name, records=len(expected), changed=changed, difference=difference, refused=refused)


def measure(
    runs: Mapping[str, Run], data: BootstrapData, sizes: Sequence[int], device: torch.device
) -> dict[str, tuple[float, ...]]:
    """Milliseconds of a whole pass by candidate and batch size; all take turns, in an order that changes."""
    batches = [data.take(data.typical(size), device) for size in sizes]
    times: dict[str, list[list[float]]] = {name: [[] for _ in sizes] for name in runs}
    order, began, rounds = list(runs), time.monotonic(), -1
    with torch.inference_mode():
        while rounds < LEAST_ROUNDS or (rounds < MOST_ROUNDS and time.monotonic() - began < MEASURE_S):
            for b, inputs in enumerate(batches):
                for name in order:
                    start = time.perf_counter()
                    runs[name](inputs).cpu()
                    if rounds >= 0:
                        times[name][b].append((time.perf_counter() - start) * 1e3)
            order.append(order.pop(0))
            rounds += 1
    return {name: tuple(round(float(np.quantile(t, QUANTILE)), 4) for t in one) for name, one in times.items()}


def fastest(found: Sequence[Candidate], sizes: Sequence[int]) -> tuple[str, str]:
    """(back end, why): the least time for a request, all profiled batch sizes counted alike."""
    costs = {one.backend: sum(t / n for t, n in zip(one.ms, sizes, strict=True)) for one in found if one.ms}
    others = [one for one in found if one.backend != EAGER]
    if len(costs) < 2:
        why = "; ".join(f"{one.backend}: {one.refused}" for one in others)
        return EAGER, f"there is no other: {why}" if why else "there is no other"
    best = min(costs, key=lambda name: costs[name])
    if costs[best] > (1 - LEAST_GAIN) * costs[EAGER]:
        return EAGER, f"no other is faster by {LEAST_GAIN:.0%}"
    times = costs[EAGER] / costs[best]
    changed = next(one for one in found if one.backend == best)
    return best, f"{times:.2f} times as fast as eager, {changed.changed} of {changed.records} answers changed"


def at_every_site(job: Job, backend: Mapping[str, Any], pieces: Cut, constants: Mapping[str, Tensor]) -> Any:
    """The chosen back end as training reads it, with the value at every site. Compiled segments are made only for the
    ramps that are kept; torch stands in for them, whose answers they were compared with."""
    eager = assemble(pieces, constants, job.device)
    if backend["name"] != ONNX:
        return eager
    from apparate_worker.model import onnx_graph
    from apparate_worker.model.onnx_model import every_value

    threads = job.document.model.spec.serving.threads
    backbone = onnx_graph.load(job.partial, site_names(range(len(pieces.segments) - 1)))
    return EverySite(every_value(backbone, pieces.inputs, threads), eager)


def site_names(sites: Iterable[int]) -> list[str]:
    """The values of the exported graph at some of the model's sites."""
    return [f"site{site}" for site in sites]


def measurable(
    job: Job,
    backend: Mapping[str, Any],
    pieces: Cut,
    constants: Mapping[str, Tensor],
    heads: Sequence[RampHead],
    sites: Sequence[int],
) -> tuple[Any, Sequence[Any], InGraph | None]:
    """(model in segments, its ramps, what else is to be measured) for the profile.

    `pieces` is cut at `sites`, each of which has one of `heads`.
    """
    if backend["name"] != ONNX:
        model = assemble(pieces, constants, job.device)
        if "machine" in backend:
            return with_compiled(model, job.partial, backend["machine"], job.device), heads, None
        return model, heads, None
    made = [
        in_onnx(
            job.partial,
            site_names(sites),
            heads,
            inputs=pieces.inputs,
            mask_input=pieces.inputs[pieces.mask] if pieces.mask is not None else None,
            threads=job.document.model.spec.serving.threads,
        )
        for _ in range(3)
    ]
    (model, ramps), (whole, _), (heard, _) = made
    model.cut_at(range(len(sites)))
    heard.cut_at(range(len(sites)), tuple((r, True) for r in range(len(heads))))
    return model, ramps, InGraph(whole, heard)


class EverySite:
    """An ONNX graph as training reads it: one whole pass gives the values at all sites; `eager` what goes around."""

    def __init__(self, values: Callable[[Mapping[str, Tensor]], list[Tensor]], eager: SegmentedModel) -> None:
        self._values, self._eager = values, eager
        self.segments = eager.segments

    def start(self, inputs: Mapping[str, Tensor], says: object = ()) -> Any:
        """The state before the first site; the pass has been run."""
        state = self._eager.start(inputs)
        return _Visit(state, self._values(inputs))

    def advance(self, k: int, state: _Visit) -> _Visit:
        """On to site k."""
        state.state.value = state.values[k]
        return state

    def site(self, state: _Visit) -> Tensor:
        """The value at the site."""
        return state.state.value

    def mask(self, state: _Visit) -> Tensor | None:
        """[N, L], if the model has one."""
        return state.state.mask

    def output(self, state: _Visit) -> Tensor:
        """Scores [N, C]."""
        return state.state.value


@dataclass(slots=True)
class _Visit:
    state: State
    values: list[Tensor]

    @property
    def value(self) -> Tensor:
        return self.state.value

    @property
    def sides(self) -> tuple[Any, ...]:
        return self.state.sides
