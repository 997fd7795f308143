"""What feedback and closed exits cost, how late the event loop is, how much memory there is, how long a start takes."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import redis
from environments import CACHE, HERE
from measuring import measure, ratio, summary
from models import Bare, Prepared
from servers import OURS, READY_WITHIN_S, Server, start_worker

from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.contract.stream import PLAN_FIELD, plans_key
from apparate.plan import Plan
from apparate.service.redis_server import EmbeddedRedis

CONNECTIONS = 16
PLAIN, CLOSED, AJAR, REPORTING = OURS, "exits closed", "exits ajar", "exits ajar, feedback"
AJAR_BY = 1e-30  # a threshold that opens the exits and lets only an error of nothing leave
REVISION = 1
Tell = Callable[[str], None]


def feedback(model: Prepared, rounds: int, seconds: int, tell: Tell) -> dict[str, Any]:
    """The plain model, a plan whose ramps run and let nobody go, and one that opens exits, with feedback and without.

    Open, because until an exit has been open passes look at ramps that are switched off, which is no steady state.
    """
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(Bare(model))
        closed = {"EEM_WORKER_REDIS_URL": stack.enter_context(_redis_with_plan(model, 0.0))}
        ajar = {"EEM_WORKER_REDIS_URL": stack.enter_context(_redis_with_plan(model, AJAR_BY))}
        quiet = {"module": "instrumented", "BENCH_NO_FEEDBACK": "1"}
        servers = [
            start_worker(model, bare.traffic, name=PLAIN),
            start_worker(model, bare.traffic, name=CLOSED, **quiet, **closed),
            start_worker(model, bare.traffic, name=AJAR, **quiet, **ajar),
            start_worker(model, bare.traffic, name=REPORTING, **ajar),
        ]
        for server in servers:
            stack.enter_context(server)
        for server in servers[1:]:
            _until_planned(server)
        tell(f"{model.name}: plain, exits closed, exits ajar without and with feedback; {CONNECTIONS} connections")
        sides = {one.name: functools.partial(one.load, CONNECTIONS, seconds) for one in servers}
        samples = measure(sides, rounds, tell)
    ratios = {
        "rps with exits disabled against plain": ratio(samples, CLOSED, (PLAIN,)),
        "rps with feedback against without": ratio(samples, REPORTING, (AJAR,)),
    }
    return {"medians": summary(samples), "ratios": ratios, "samples": samples}


@contextlib.contextmanager
def _redis_with_plan(model: Prepared, threshold: float) -> Iterator[str]:
    """A Redis that says: as many ramps as the budget bears, all with this threshold."""
    document = model.document
    catalog = RampCatalog.from_json(json.loads((document.prepared / "catalog.json").read_text()))
    budget = document.model.spec.budget.ramp_overhead
    active: list[int] = []
    for ramp in range(catalog.ramps):
        if catalog.fits([*active, ramp], budget):
            active.append(ramp)
    plan = Plan.of(REVISION, active, [threshold] * len(active), catalog.digest)
    server = EmbeddedRedis().start()
    try:
        client = redis.Redis.from_url(server.url)
        status = PlanStatus.of(plan, catalog.layers)
        client.xadd(plans_key(document.model.key), {PLAN_FIELD: status.model_dump_json(by_alias=True)})
        client.close()
        yield server.url
    finally:
        server.close()


def _until_planned(server: Server) -> None:
    """Until answers come under the plan. Raises RuntimeError."""
    import http.client

    give_up = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        with contextlib.closing(connection):
            body, headers = server.traffic.body(0, server.form)
            connection.request("POST", server.path, body, headers)
            if json.loads(connection.getresponse().read())["parameters"]["plan_revision"] == REVISION:
                return
        time.sleep(0.1)
    raise RuntimeError(f"{server.name} does not take the plan")


def lag(model: Prepared, rounds: int, seconds: int, tell: Tell) -> dict[str, Any]:
    """How late the event loop is while 16 connections keep the worker busy."""
    file = CACHE / "lag.json"
    found = []
    with Bare(model) as bare:
        for number in range(rounds):
            file.unlink(missing_ok=True)
            server = start_worker(model, bare.traffic, module="instrumented", BENCH_LAG_FILE=str(file))
            with server:
                server.load(CONNECTIONS, seconds)
                server.popen.terminate()
                server.popen.wait(READY_WITHIN_S)
            late_ms = json.loads(file.read_text())
            p50, p99 = np.percentile(late_ms, [50, 99])
            found.append({"p50_ms": float(p50), "p99_ms": float(p99), "max_ms": max(late_ms), "ticks": len(late_ms)})
            tell(f"  {model.name}, round {number + 1} of {rounds}: loop late by {p99:.2f} ms at p99")
    return {key: statistics.median(one[key] for one in found) for key in found[0]} | {"rounds": rounds}


TORCH_ONLY = "import sys, torch; print(flush=True); sys.stdin.read()"
TORCH_AND_WEIGHTS = """
import sys
import torch
from safetensors.torch import load_file
weights = {name: value.clone() for name, value in load_file(sys.argv[1]).items()}
print(flush=True)
"""


def memory(model: Prepared, seconds: int, tell: Tell) -> dict[str, Any]:
    """Resident memory of a worker under load without that of a process that only imports torch, in MB."""
    with Bare(model) as bare, start_worker(model, bare.traffic) as server:
        server.load(CONNECTIONS, seconds)
        worker = rss_mb(server.popen.pid)
    torch = subprocess.Popen([sys.executable, "-c", TORCH_ONLY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert torch.stdout is not None
    torch.stdout.readline()
    alone = rss_mb(torch.pid)
    torch.kill()
    torch.wait()
    tell(f"  {model.name}: {worker:.0f} MB, {alone:.0f} MB of it torch")
    return {"worker_mb": worker, "torch_mb": alone, "beyond_torch_mb": worker - alone}


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def start(model: Prepared, rounds: int, tell: Tell) -> dict[str, Any]:
    """From the start of a worker to its line that says ready, beside importing torch and reading the same weights."""
    weights = str(model.document.prepared / "model.safetensors")
    found: list[dict[str, float]] = []
    with Bare(model) as bare:
        for number in range(-1, rounds):  # the first one fills the system's cache of files
            began = time.monotonic()
            with start_worker(model, bare.traffic):
                ready_s = time.monotonic() - began
            began = time.monotonic()
            subprocess.run(
                [sys.executable, "-c", TORCH_AND_WEIGHTS, weights], check=True, stdout=subprocess.DEVNULL, cwd=HERE
            )
            least_s = time.monotonic() - began
            if number >= 0:
                found.append({"ready_s": ready_s, "torch_and_weights_s": least_s, "ratio": ready_s / least_s})
                tell(f"  {model.name}, {number + 1} of {rounds}: ready after {ready_s:.2f} s, torch {least_s:.2f} s")
    medians = {key: statistics.median(one[key] for one in found) for key in found[0]}
    each = [one["ratio"] for one in found]
    return medians | {"low": min(each), "high": max(each), "rounds": rounds}
