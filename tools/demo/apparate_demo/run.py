"""The comparison itself: both models served, the same slices sent to one and then to the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from apparate.catalog import RampCatalog
from apparate.cli.logs import LogWriter
from apparate.cli.planning import Served
from apparate.cli.ports import FREE
from apparate.cli.stack import LocalStack
from apparate.contract.resource import PlanStatus
from apparate.feedback import FeedbackBatch
from apparate_demo import load
from apparate_demo.assets import asset
from apparate_demo.client import Client, ClientError, Target
from apparate_demo.recording import Recorder
from apparate_demo.results import Pair
from apparate_demo.scenarios.scenario import Workspace

TRACE = "azure_llm_conv_2023_arrivals.csv"
CONCURRENCY = 32  # four full batches: one in the pass and three waiting, a queue that never runs dry
CAPACITY_S, CAPACITY_ROUNDS = 3.0, 3
# Half of a round warms up. They are short and many, because the pace of a shared machine changes by the second.
THROUGHPUT_S, THROUGHPUT_ROUNDS = 3.0, 8
SETTLE_S = 0.3  # between slices: the last pass and its feedback end, a decision is taken and delivered
PINGS = 200
SIDES = ("plain", "exits")


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    seconds: float
    load: float
    protocol: str

    def lasting(self, usual_s: float) -> float:
        """Seconds of a measurement at saturation that usually takes `usual_s`: fewer in a run of a few seconds."""
        return min(usual_s, self.seconds / 4)


@dataclass
class Run:
    """Everything a run gave."""

    options: Options
    capacity_rps: float
    slices: list[load.Slice]
    catalog: RampCatalog
    pairs: list[Pair] = field(default_factory=list)
    throughput: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    feedback: dict[str, list[FeedbackBatch]] = field(default_factory=lambda: {side: [] for side in SIDES})
    """What the workers reported during the slices."""
    plans: list[PlanStatus] = field(default_factory=list)
    ping_ms: dict[str, float] = field(default_factory=dict)
    cpu_share: dict[str, dict[str, float]] = field(default_factory=dict)
    """Cores that each process used during the slices of each side."""


def compare(workspace: Workspace, options: Options, tell: Callable[[str], None]) -> Run:
    """Serve both models and send them the same traffic. Raises StackFailed, ClientError."""
    documents = {"plain": workspace.plain, "exits": workspace.document}
    served = [Served(workspace.plain_path, documents["plain"]), Served(workspace.document_path, documents["exits"])]
    with (
        (workspace.folder / "serving.log").open("w") as log,
        LocalStack(served, ports=FREE, log=LogWriter(log)) as stack,
        Client(workspace.traffic_path) as client,
    ):
        addresses = {one.model.rpartition("/")[2]: one for one in stack.endpoints}
        targets = {
            side: Target(
                getattr(addresses[d.model.metadata.name], options.protocol), d.model.metadata.name, options.protocol
            )
            for side, d in documents.items()
        }
        keys = {side: d.model.key for side, d in documents.items()}
        with _recorders(stack.redis_url, keys) as recorders:
            return _run(
                workspace, options, client, targets, recorders, {**_processes(stack), "client": client.pid}, tell
            )


@contextmanager
def _recorders(url: str, keys: Mapping[str, str]) -> Iterator[dict[str, Recorder]]:
    recorders = {side: Recorder(url, key) for side, key in keys.items()}
    try:
        yield recorders
    finally:
        for recorder in recorders.values():
            recorder.close()


def _run(
    workspace: Workspace,
    options: Options,
    client: Client,
    targets: Mapping[str, Target],
    recorders: Mapping[str, Recorder],
    processes: Mapping[str, int],
    tell: Callable[[str], None],
) -> Run:
    tell("measuring the capacity of the plain model")
    ping_ms = {side: float(np.median(client.ping(target, PINGS))) * 1e3 for side, target in targets.items()}
    rates = [
        client.saturate(targets["plain"], seconds=options.lasting(CAPACITY_S), concurrency=CONCURRENCY)
        for _ in range(CAPACITY_ROUNDS)
    ]
    capacity = float(np.mean(rates[1:]))  # the first round warms up
    rate = options.load * capacity
    tell(f"capacity {capacity:.0f} requests/s; sending {rate:.0f}/s ({options.load:.0%}) open loop")
    with np.load(workspace.traffic_path) as traffic:
        inputs = len(traffic[traffic.files[0]])
    slices = load.plan_slices(load.read_gaps(asset(TRACE)), seconds=options.seconds, rate=rate, inputs=inputs)
    catalog = RampCatalog.from_json(_catalog(workspace))
    run = Run(options, capacity, slices, catalog, ping_ms=ping_ms)
    for recorder in recorders.values():
        recorder.poll()
        recorder.batches.clear()  # what measuring the capacity left
    _slices(run, client, targets, recorders, processes, tell)
    for side, recorder in recorders.items():
        run.feedback[side] = recorder.batches
    run.plans = recorders["exits"].plans()
    _throughput(run, client, targets, tell)
    return run


def _slices(
    run: Run,
    client: Client,
    targets: Mapping[str, Target],
    recorders: Mapping[str, Recorder],
    processes: Mapping[str, int],
    tell: Callable[[str], None],
) -> None:
    used: dict[str, dict[str, float]] = {side: dict.fromkeys(processes, 0.0) for side in SIDES}
    spent = dict.fromkeys(SIDES, 0.0)
    for number, piece in enumerate(run.slices):
        outcomes = {}
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:  # neither side is always the first
            before, start = cpu_seconds(processes), time.monotonic()
            outcomes[side] = client.run(targets[side], piece)
            spent[side] += time.monotonic() - start
            if not outcomes[side].answered.any():
                raise ClientError(f"no request of slice {number + 1} was answered: {outcomes[side].error}")
            for name, seconds in cpu_seconds(processes).items():
                used[side][name] += seconds - before[name]
            time.sleep(SETTLE_S)
            recorders[side].poll()
        pair = Pair(**outcomes)
        run.pairs.append(pair)
        tell(f"slice {number + 1} of {len(run.slices)}: {_live(pair)}")
    run.cpu_share = {
        side: {name: round(s / max(spent[side], 1e-9), 3) for name, s in used[side].items()} for side in SIDES
    }


def _live(pair: Pair) -> str:
    def p50(side: str) -> float:
        outcome = getattr(pair, side)
        took = (outcome.done - outcome.scheduled)[outcome.answered]
        return float(np.median(took)) * 1e3 if len(took) else float("nan")

    both = pair.plain.answered & pair.exits.answered
    same = (pair.plain.label == pair.exits.label)[both]
    agreement = f"{same.mean():.2%}" if len(same) else "none"
    early = float((pair.exits.exit_ramp >= 0)[both].mean()) if len(same) else 0.0
    return (
        f"median {p50('plain'):.2f} -> {p50('exits'):.2f} ms, {early:.0%} left early, agreement {agreement}, "
        f"plan {int(pair.exits.revision.max(initial=0))}"
    )


def _throughput(run: Run, client: Client, targets: Mapping[str, Target], tell: Callable[[str], None]) -> None:
    for number in range(THROUGHPUT_ROUNDS):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            rate = client.saturate(targets[side], seconds=run.options.lasting(THROUGHPUT_S), concurrency=CONCURRENCY)
            run.throughput[side].append(rate)
        plain, exits = (run.throughput[side][-1] for side in SIDES)
        tell(f"throughput at saturation {number + 1} of {THROUGHPUT_ROUNDS}: {plain:.0f} -> {exits:.0f} requests/s")


def _catalog(workspace: Workspace) -> object:
    import json

    return json.loads((workspace.document.prepared / "catalog.json").read_text())


def _processes(stack: LocalStack) -> dict[str, int]:
    """Process ids by name, for telling where the time of the cores went."""
    found = {child.name: child.pid for child in stack.children if child.pid is not None}
    if stack.redis is not None:
        found["redis"] = stack.redis.pid
    return found


def cpu_seconds(processes: Mapping[str, int]) -> dict[str, float]:
    """CPU time each process has used so far; 0 where the system does not tell."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = dict.fromkeys(processes, 0.0)
    for name, pid in processes.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found[name] = (int(fields[11]) + int(fields[12])) / ticks
    return found
