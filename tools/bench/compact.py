"""What the mode compact saves: requests/s at saturation of the plain model, of report and of compact, in turns.

    python tools/bench/compact.py --data FOLDER [--scenario cifar] [--batch 8] [--rounds 8] [--seconds 3] [--json FILE]

One process, one CPU thread for the model, no network: batcher, device thread, guard and ramps are the worker's own. The
plan is what the controller's session decides on the first half of the traffic; the other half, which nothing has been
tuned on, is what is asked. Images also come mirrored, so that there are enough of both. Each round measures the three
one after the other, in an order that changes; what is told is the ratio to plain of the same round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from apparate.catalog import RampCatalog
from apparate.cli.planning import Served
from apparate.cli.serve import prepare_all
from apparate.contract.resource import Spec
from apparate.feedback import FINAL, FeedbackBatch
from apparate.plan import Plan
from apparate_controller.session import ModelSession
from apparate_demo.loaders import InvalidData
from apparate_demo.scenarios import SCENARIOS
from apparate_demo.scenarios.scenario import write
from apparate_worker.__main__ import SWITCH_S
from apparate_worker.batching import Batcher
from apparate_worker.compact import Compact, partings
from apparate_worker.device import DeviceThread
from apparate_worker.engine import CpuLink, Engine, Schedule
from apparate_worker.errors import NotReady
from apparate_worker.guard import Promise, WorkerGuard
from apparate_worker.metering import forced
from apparate_worker.model.store import PreparedModel, load_prepared
from apparate_worker.passes import Pass
from apparate_worker.passtimes import PassTimes
from apparate_worker.pending import Pending
from apparate_worker.plain import remaining_table
from apparate_worker.release import scores
from apparate_worker.serving import TAIL_BATCHES, Serving

Array = npt.NDArray[Any]
CACHE = Path.home() / ".cache" / "apparate" / "bench" / "compact"
QUEUED = 4  # batches: one in the pass and three that wait
SETTLE_S = 0.3  # between two measurements: what is under way ends
SIDES = ("plain", "report", "compact")


@dataclass
class Side:
    """One way to serve the model, and what became of what it was asked."""

    name: str
    passes: list[Pass] = field(default_factory=list)
    rps: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """From asking to the answer."""
    at: int = 0
    """How many were asked."""

    def wants_shadows(self, *, opened: bool) -> bool:
        """Never: the set of ramps stays."""
        return False

    def offer(self, done: Pass) -> None:
        """Keep the report of a pass."""
        self.passes.append(done)


class Asked(Pending):
    """A request that knows which row of the traffic it has."""

    __slots__ = ("row",)

    def __init__(self, inputs: dict[str, Array], future: asyncio.Future[None], row: int) -> None:
        super().__init__(inputs, 1, future, time.monotonic())
        self.row = row


def main() -> None:
    """Prepare, tune, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="cifar", choices=sorted(SCENARIOS))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--work", type=Path, help="where the prepared model is kept")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    try:
        prepared, spec, inputs = materials(asked.scenario, asked.work, asked.data)
    except InvalidData as error:
        parser.error(str(error))
    with torch.inference_mode():
        engine = Engine(prepared.model, prepared.heads, CpuLink())
        said = whole_passes(engine, inputs, asked.batch, prepared.catalog.ramps)
    half = len(said[0]) // 2
    plan = tuned(prepared.catalog, spec, [one[:half] for one in said], asked.batch)
    fresh = {name: values[half:] for name, values in inputs.items()}
    sides = asyncio.run(measured(prepared, spec, plan, fresh, asked))
    found = {"scenario": asked.scenario, "batch": asked.batch, "ramps": told(plan, prepared.catalog, said[0][half:])}
    found |= figures(sides, said[2][half:])
    print(json.dumps(found, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")


def materials(name: str, work: Path | None, data: Path | None) -> tuple[PreparedModel, Spec, dict[str, Array]]:
    """The prepared model, its spec in the mode compact, and the traffic with its mirror images."""
    scenario = SCENARIOS[name]
    scenario = replace(
        scenario, spec={**scenario.spec, "serving": {**scenario.spec.get("serving", {}), "maxBatch": 16}}
    )
    workspace = write(scenario, work or CACHE / name, data)
    document = workspace.document
    prepare_all([Served(workspace.document_path, document)])
    with np.load(workspace.traffic_path) as arrays:
        inputs = {key: np.concatenate([arrays[key], arrays[key][:, :, ::-1]]) for key in arrays.files}
    rng, pictures = np.random.default_rng(0), len(next(iter(inputs.values()))) // 2
    halves = np.split(rng.permutation(pictures), [pictures // 2])  # a picture is in the same half as its mirror image
    order = np.concatenate([rng.permutation(np.concatenate([half, half + pictures])) for half in halves])
    spec = document.model.spec
    spec = spec.model_copy(update={"serving": spec.serving.model_copy(update={"mode": "compact"})})
    prepared = load_prepared(document.prepared, document, torch.device("cpu"))
    return prepared, spec, {key: values[order] for key, values in inputs.items()}


def whole_passes(engine: Engine, inputs: dict[str, Array], batch: int, ramps: int) -> tuple[Array, Array, Array]:
    """([N, R] errors, [N, R] labels, [N] the model's own) of everything, every ramp asked."""
    schedule = Schedule(Plan.of(0, range(ramps), [0.0] * ramps), ramps)
    errors, labels, final = [], [], []
    for start in range(0, len(next(iter(inputs.values()))), batch):
        rows = {key: np.ascontiguousarray(values[start : start + batch]) for key, values in inputs.items()}
        *heads, last = (one for one in engine.run(engine.start(rows, schedule)) if one is not None)
        found = [scores(one.values) for one in heads]
        errors.append(np.column_stack([error for error, _ in found]))
        labels.append(np.column_stack([label for _, label in found]))
        final.append(last.values.argmax(axis=1).astype(np.int32))
    return np.concatenate(errors), np.concatenate(labels), np.concatenate(final)


def tuned(catalog: RampCatalog, spec: Spec, said: Sequence[Array], batch: int) -> Plan:
    """The plan that the controller comes to on this feedback, every ramp of which reports."""
    session = ModelSession(catalog, spec)
    session.start()
    errors, labels, final = said
    for seq, start in enumerate(range(0, len(final), batch)):
        rows = slice(start, start + batch)
        n = len(final[rows])
        session.feed(
            FeedbackBatch(
                "bench", "bench", 1, seq, session.plan.revision, n, tuple(range(catalog.ramps)),
                errors[rows], labels[rows], final[rows], np.full(n, FINAL, np.int32),
            )
        )  # fmt: skip
        if (search := session.take_search()) is not None:
            session.propose(search.run())
    return session.plan


async def measured(
    prepared: PreparedModel, spec: Spec, plan: Plan, fresh: dict[str, Array], asked: argparse.Namespace
) -> dict[str, Side]:
    """All sides, round after round."""
    sides = {name: Side(name) for name in SIDES}
    servings = {name: a_serving(side, prepared, spec, plan, asked.batch, fresh) for name, side in sides.items()}
    thread = DeviceThread(list(servings.values()), loop=asyncio.get_running_loop())
    thread.start()
    for number in range(-1, asked.rounds):  # the first warms up
        turn = number % len(SIDES)
        for name in SIDES[turn:] + SIDES[:turn]:
            side = sides[name]
            side.rps.append(await saturated(side, servings[name].batcher, fresh, asked))
            await asyncio.sleep(SETTLE_S)
            if number < 0:
                side.passes, side.rps, side.seconds = [], [], []
    for serving in servings.values():
        serving.batcher.close(NotReady("done"))
    await thread.ended(10)
    return sides


def a_serving(
    side: Side, prepared: PreparedModel, spec: Spec, plan: Plan, batch: int, fresh: dict[str, Array]
) -> Serving:
    """The model served one way."""
    catalog, engine = prepared.catalog, Engine(prepared.model, prepared.heads, CpuLink())
    ramps = catalog.ramps
    remaining = remaining_table(catalog, TAIL_BATCHES * batch).tolist()
    compact = Compact(lambda ramp, rows: remaining[rows][ramp], seed=1)
    warm = {key: np.ascontiguousarray(values[:batch]) for key, values in fresh.items()}
    compact.parting_ms = partings(engine, warm, Schedule(Plan.of(0, range(ramps), [0.0] * ramps), ramps))
    schedule = Schedule(Plan(0) if side.name == "plain" else plan, ramps)
    engine.arrange(schedule)
    share = spec.serving.checked_share if side.name == "compact" else 1.0
    guard = WorkerGuard(Promise.of(spec.budget, share), ramps)
    guard.admit(Schedule(Plan(0), ramps))
    guard.served_plain(1_000_000)  # as after a while of serving: the books are full
    return Serving(
        engine=engine,
        batcher=Batcher(max_batch=batch, max_delay_s=0.0, max_queue=1000, times=PassTimes.of_catalog(catalog, batch)),
        inputs=prepared.inputs,
        schedule=schedule,
        guard=guard,
        reports=side,
        loop=asyncio.get_running_loop(),
        max_batch=batch,
        remaining_ms=lambda ramp, rows: remaining[rows][ramp],
        compact=compact,
    )


async def saturated(side: Side, batcher: Batcher, fresh: dict[str, Array], asked: argparse.Namespace) -> float:
    """Answers in a second, with a queue that never runs dry."""
    loop, rows = asyncio.get_running_loop(), len(next(iter(fresh.values())))
    began = time.monotonic()
    until, answered = began + asked.seconds, 0

    async def client() -> None:
        nonlocal answered
        while time.monotonic() < until:
            row, side.at = side.at % rows, side.at + 1
            inputs = {key: values[row : row + 1] for key, values in fresh.items()}
            request = Asked(inputs, loop.create_future(), row)
            batcher.put(request)
            await request.future
            now = time.monotonic()
            if now < until:
                answered += 1
                side.seconds.append(now - request.arrived)

    await asyncio.gather(*(client() for _ in range(QUEUED * asked.batch)))
    return answered / (until - began)


def figures(sides: dict[str, Side], final: Array) -> dict[str, Any]:
    """What is told of each side; `final` are the model's own labels of what was asked."""
    plain = sides["plain"].rps
    return {name: one_side(side, plain, final) for name, side in sides.items()}


def one_side(side: Side, plain: Sequence[float], final: Array) -> dict[str, Any]:
    """Rates, their ratio to plain of the same round, latencies, and whether the answers are the model's own."""
    ratios = [one / other for one, other in zip(side.rps, plain, strict=True)]
    wrong = answers = checked = 0
    for done in side.passes:
        rows = [item.request.row for item in done.items]
        said = np.array([item.request.labels[0] for item in done.items])
        wrong += int(np.count_nonzero(said != final[rows]))
        answers += len(rows)
        checked += len(rows) if done.whole else 0
    exits = np.concatenate([done.exits for done in side.passes])
    median_ms, p99_ms = np.percentile(side.seconds, [50, 99]) * 1e3
    return {
        "rps": statistics.median(side.rps),
        "ratio": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
        "p50Ms": float(median_ms),
        "p99Ms": float(p99_ms),
        "answers": answers,
        "agreement": 1 - wrong / answers,
        "leftEarly": float((exits != FINAL).mean()),
        "checked": checked / answers,
        "rowsDropped": sum(done.dropped for done in side.passes),
        "forcedExits": sum(forced(done) for done in side.passes),
    }


def told(plan: Plan, catalog: RampCatalog, errors: Array) -> list[dict[str, Any]]:
    """The plan's ramps: where they are in a pass of the largest batch, and how many leave there or before."""
    gone, found = np.zeros(len(errors), bool), []
    for setting in plan.ramps:
        gone |= errors[:, setting.ramp] < np.float32(setting.threshold)
        depth = float(catalog.reach_ms[-1, setting.ramp] / catalog.full_ms[-1])
        found.append({"layer": catalog.layers[setting.ramp], "depth": depth, "leftByThen": float(gone.mean())})
    return found


if __name__ == "__main__":
    main()
