"""Back ends beside plain ONNX Runtime of the whole model: `python tools/bench/backends.py [--model text]`.

The demo's models (vision, text) are prepared for each back end and run as the worker runs them, by its engine, with one
CPU thread. In each round every variant runs some passes, in random order; a round's figure is the median of its passes,
and a ratio is of two figures of one round. `plain` is one session of the whole model that gives the scores and nothing
else, with ONNX Runtime's own settings. With `ramps` are two at a third and two thirds of the pass, both open, whatever
the ramp budget says of them; nobody leaves, so that each pass does all the work.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch

from apparate.catalog import RampCatalog
from apparate.plan import Plan
from apparate_demo.command import SCENARIOS
from apparate_demo.scenarios.scenario import LENGTHS, Scenario, default_workdir, write
from apparate_worker.engine import Engine, Schedule, link_to
from apparate_worker.model.memory import keep_freed_memory
from apparate_worker.model.onnx_graph import load, piece
from apparate_worker.model.store import load_prepared
from apparate_worker.prepare import prepare

Inputs = dict[str, npt.NDArray[Any]]
Call = Callable[[Inputs], object]
CPU = torch.device("cpu")
PLAIN = "plain ONNX Runtime"
OPEN = 1e-9  # a threshold that is open, and under which nobody leaves


def main() -> None:
    """Measure each model at each batch size, print a table, and write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append", choices=("vision", "text"), help="default: both")
    parser.add_argument("--backend", action="append", choices=("eager", "onnx", "compile"), help="default: eager, onnx")
    parser.add_argument("--batch", action="append", type=int, help="default: 1 and 8")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--passes", type=int, default=0, help="passes of a variant in a round; default: for 30 ms")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    found = []
    for name in arguments.model or ("vision", "text"):
        variants, traffic = variants_of(SCENARIOS[name], arguments.backend or ("eager", "onnx"))
        for size in arguments.batch or (1, 8):
            rows = measured(variants, batches(traffic, size), arguments.rounds, arguments.passes)
            found += [{"model": name, "batch": size, "rounds": arguments.rounds, **row} for row in rows]
            for row in rows:
                low, high = row["ratio_p10_p90"]
                ratio = f"{row['ratio']:6.3f}  ({low:.3f} .. {high:.3f})"
                print(f"{name:7} batch {size:2}  {row['what']:24} {row['ms']:9.3f} ms  x plain {ratio}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def variants_of(scenario: Scenario, backends: Sequence[str]) -> tuple[dict[str, Call], Inputs]:
    """What is compared, by name, and the traffic."""
    variants: dict[str, Call] = {}
    for backend in dict.fromkeys((*backends, "onnx")):  # the plain session is made of its graph
        spec = {**scenario.spec, "serving": {**scenario.spec.get("serving", {}), "backend": backend, "device": "cpu"}}
        workspace = write(
            replace(scenario, spec=spec), default_workdir(scenario.name).parent / f"{scenario.name}-{backend}", None
        )
        document = workspace.document
        catalog = prepare(
            document, progress=lambda step: print(f"  {step.stage}: {step.message}") if step.message else None
        )
        folder = document.prepared
        if backend == "onnx":
            variants[PLAIN] = plain(folder, catalog)
        if backend in backends:
            none, ramps = Schedule(Plan(0), catalog.ramps), Schedule(two_ramps(catalog), catalog.ramps)
            for what, schedule in (("", none), (", ramps", ramps)):
                prepared = load_prepared(folder, document, CPU)
                engine = Engine(prepared.model, prepared.heads, link_to(CPU))
                engine.arrange(schedule)
                variants[backend + what] = passes(engine, schedule)
        traffic = dict(np.load(workspace.traffic_path))
    return variants, traffic


def plain(folder: Path, catalog: RampCatalog) -> Call:
    """One session of the whole model."""
    backbone = load(folder, catalog.extra["backend"]["sites"])
    graph = piece(backbone, 0, len(backbone.sites))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    names = [tensor.name for tensor in graph.graph.initializer if tensor.name in backbone.weights]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(backbone.weights[name]) for name in names]
    options.add_external_initializers(names, values)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
    inputs = [one.name for one in session.get_inputs()]
    return lambda given: session.run(None, {name: given[name] for name in inputs})


def two_ramps(catalog: RampCatalog) -> Plan:
    """Ramps nearest to a third and two thirds of the pass, open."""
    place = catalog.reach_ms[0] / catalog.full_ms[0]
    ramps = sorted({int(np.abs(place - share).argmin()) for share in (1 / 3, 2 / 3)})
    return Plan.of(1, ramps, [OPEN] * len(ramps))


def passes(engine: Engine, schedule: Schedule) -> Call:
    """A pass as the device thread runs it."""

    def run(given: Inputs) -> object:
        with torch.inference_mode():
            for output in engine.run(engine.start(given, schedule)):
                last = output
        return last

    return run


def batches(traffic: Inputs, size: int, count: int = 16) -> list[Inputs]:
    """Batches drawn from the traffic, each as long as its longest item."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        rows = rng.integers(0, len(next(iter(traffic.values()))), size)
        inputs = {name: values[rows] for name, values in traffic.items() if name != LENGTHS}
        if LENGTHS in traffic:
            longest = int(traffic[LENGTHS][rows].max())
            inputs = {name: np.ascontiguousarray(values[:, :longest]) for name, values in inputs.items()}
        found.append(inputs)
    return found


def measured(
    variants: dict[str, Call], inputs: Sequence[Inputs], rounds: int, passes_each: int
) -> list[dict[str, Any]]:
    """A row for each variant: milliseconds of a pass, and how often those of the plain session it takes."""
    for _ in range(3):
        for call in variants.values():
            for given in inputs:
                call(given)
    began = time.perf_counter()
    for given in inputs:
        variants[PLAIN](given)
    each = passes_each or max(2, int(0.03 / ((time.perf_counter() - began) / len(inputs))))
    taken: dict[str, list[float]] = {name: [] for name in variants}
    shuffle = random.Random(0)
    for turn in range(rounds):
        chosen = [inputs[(turn * each + i) % len(inputs)] for i in range(each)]
        for name in shuffle.sample(list(variants), len(variants)):
            times = []
            for given in chosen:
                start = time.perf_counter()
                variants[name](given)
                times.append(time.perf_counter() - start)
            taken[name].append(float(np.median(times)) * 1e3)
    plain_ms = np.array(taken[PLAIN])
    rows = []
    for name, values in taken.items():
        ratios = np.array(values) / plain_ms
        spread = [round(float(q), 4) for q in np.quantile(ratios, (0.1, 0.9))]
        rows.append(
            {
                "what": name,
                "ms": round(float(np.median(values)), 4),
                "ratio": round(float(np.median(ratios)), 4),
                "ratio_p10_p90": spread,
            }
        )
    return rows


if __name__ == "__main__":
    main()
