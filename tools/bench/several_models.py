"""Three models on one device at 1.2 times what it can serve: requests without an answer in time, by scheduling rule.

    make bench-models                       # simulated, and a real run of 10 s for each rule
    make bench-models ARGS="--seconds 0"    # simulated only

The real run has the worker's own device thread, scheduler, batchers and passes; the models' segments only sleep, so
that the figures do not depend on what else runs on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from apparate.adaptation.guard import GuardState
from apparate.plan import Plan
from apparate_worker.batching import Batcher
from apparate_worker.device import DeviceThread
from apparate_worker.engine import CpuLink, Engine, Schedule
from apparate_worker.errors import DeadlinePassed, Overloaded
from apparate_worker.guard import Promise, WorkerGuard
from apparate_worker.passtimes import PassTimes
from apparate_worker.pending import Pending
from apparate_worker.serving import Serving
from support.device_simulation import MAX_BATCH, RULES, THREE, Device, Model, missed
from support.models import X, a_prepared_model, items

RAMPS, LEAVES_AT = 3, 1  # of 4 segments, so half of a pass is computed by then
LOAD, INPUTS = 1.2, 400
CASES = (
    ("first come", "never"),
    ("earliest deadline", "never"),
    ("ours", "never"),
    ("earliest deadline", "report"),
    ("ours", "report"),
    ("earliest deadline", "compact"),
    ("ours", "compact"),
)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of each real run; 0: simulate only")
    asked = parser.parse_args()
    names = "".join(f"{model.name:>9}" for model in THREE)
    print(f"simulated, load {LOAD}\n{'rule':20}{'exits':9}{'missed':>8}{names}")
    for rule, exits in CASES:
        runs = [Device(rule, load=LOAD, exits=exits, seconds=60, seed=seed).run() for seed in range(3)]
        mean = sum(map(missed, runs)) / len(runs)
        each = "".join(f"{sum(run[m.name].missed for run in runs) / len(runs):9.1%}" for m in THREE)
        print(f"{rule:20}{exits:9}{mean:8.1%}{each}")
    if asked.seconds:
        print(f"real, load {LOAD}\n{'rule':20}{'exits':9}{'missed':>8}{names}")
        for rule, exits in CASES[:5]:
            found = asyncio.run(real(rule, exits, asked.seconds))
            total = 1 - sum(one.in_time for one in found) / sum(one.asked for one in found)
            print(f"{rule:20}{exits:9}{total:8.1%}" + "".join(f"{1 - f.in_time / f.asked:9.1%}" for f in found))


class Reports:
    """Keeps nothing."""

    def wants_shadows(self, *, opened: bool) -> bool:
        """No."""
        return False

    def offer(self, done: object) -> None:
        """Forget it."""


class OpenGuard(WorkerGuard):
    """Never closes: this is about time."""

    def admit(self, schedule: Schedule) -> Schedule:
        """As planned."""
        return schedule

    def observe(self, wrong: Sequence[bool], share: float = 1.0) -> GuardState:
        """Hear nothing."""
        return self.state


@dataclass
class Client:
    """Asks one model."""

    model: Model
    batcher: Batcher
    inputs: Any
    asked: int = 0
    in_time: int = 0

    def ask(self, loop: asyncio.AbstractEventLoop) -> None:
        """One request, which is given up at its deadline."""
        now = time.monotonic()
        deadline, at = now + self.model.slo_ms / 1e3, self.asked % INPUTS
        request = Pending({"x": self.inputs[at : at + 1]}, 1, loop.create_future(), now, deadline=deadline)
        self.asked += 1
        request.future.add_done_callback(lambda future: self.answered(future, deadline))
        try:
            self.batcher.put(request)
        except Overloaded as error:
            request.fail(error)
            return
        loop.call_at(deadline, self.give_up, request)

    def answered(self, future: asyncio.Future[None], deadline: float) -> None:
        """Count it."""
        self.in_time += future.exception() is None and time.monotonic() <= deadline

    def give_up(self, request: Pending) -> None:
        """Its deadline."""
        if not request.future.done():
            request.fail(DeadlinePassed("late"))
            self.batcher.drop(request)


def threshold_of(prepared: Any, inputs: Any, share: float) -> float:
    """The threshold of the ramp below which so many of the inputs leave."""
    engine = Engine(prepared.model, prepared.heads, CpuLink())
    with torch.inference_mode():
        said, _ = engine.run(engine.start({"x": inputs}, Schedule(Plan.of(1, [LEAVES_AT], [0.0]), RAMPS)))
    assert said is not None
    errors = 1 - torch.softmax(torch.from_numpy(said.values), 1).max(1).values.numpy()
    return float(np.quantile(errors, share))


def a_serving(model: Model, exits: str, loop: asyncio.AbstractEventLoop) -> tuple[Serving, Client]:
    """A model whose segments sleep, and its client."""
    resting = True

    def hook(k: int, value: Any) -> None:
        if not resting:
            time.sleep(model.pass_s(len(value)) / (RAMPS + 1))

    prepared, inputs = a_prepared_model(hook=hook, sharp=2.0), items(INPUTS)
    plan = Plan(0)
    if exits == "report":
        plan = Plan.of(1, [LEAVES_AT], [threshold_of(prepared, inputs, model.leave)])
    resting = False
    times = PassTimes([0.0, *(model.pass_s(rows) for rows in range(1, MAX_BATCH + 1))])
    batcher = Batcher(max_batch=MAX_BATCH, max_delay_s=0.0, max_queue=4096, times=times, wanted_s=model.slo_ms / 1e3)
    serving = Serving(
        engine=Engine(prepared.model, prepared.heads, CpuLink()),
        batcher=batcher,
        inputs=(X,),
        schedule=Schedule(plan, RAMPS),
        guard=OpenGuard(Promise(0.01), RAMPS),
        reports=Reports(),
        loop=loop,
        max_batch=MAX_BATCH,
        remaining_ms=lambda ramp, rows: model.pass_s(rows) * 1e3 * (RAMPS - ramp) / (RAMPS + 1),
    )
    return serving, Client(model, batcher, inputs)


async def real(rule: str, exits: str, seconds: float) -> Sequence[Client]:
    """What became of the requests to each model."""
    loop = asyncio.get_running_loop()
    thread = DeviceThread(loop=loop, rule=RULES[rule])
    clients = []
    for model in THREE:
        serving, client = a_serving(model, exits, loop)
        thread.add(serving)
        clients.append(client)
    thread.start()
    random, end = np.random.default_rng(0), time.monotonic() + seconds

    async def ask(client: Client) -> None:
        rate = LOAD * client.model.load * MAX_BATCH / client.model.pass_s(MAX_BATCH)
        at = time.monotonic()
        while at < end:
            at += random.exponential(1 / rate)
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            client.ask(loop)

    await asyncio.gather(*(ask(client) for client in clients))
    await asyncio.sleep(max(client.model.slo_ms for client in clients) / 1e3)
    for client in clients:
        client.batcher.close()
    await thread.ended(math.ceil(seconds))
    return clients


if __name__ == "__main__":
    main()
