"""Speed beside the peers: of a model that does nothing, and of the demo's models."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from environments import CACHE
from measuring import Samples, measure, ratio, summary
from models import BATCH, NOOP, Bare, Prepared
from servers import OURS, Server, start_peer, start_worker

LOG = CACHE / "peers.log"
V2_PEERS = ("mlserver", "kserve")
CONNECTIONS = (1, 16)
ONE, BATCHED = {"BENCH_BATCH": "1"}, {"BENCH_BATCH": str(BATCH)}
SINGLE = {"mlserver": ONE, "kserve": ONE, "litserve": ONE, "mosec": ONE}
TWICE = {**SINGLE, "litserve batching": BATCHED, "mosec batching": BATCHED}
REAL = {"mlserver batching": BATCHED, "kserve": ONE, "litserve batching": BATCHED, "mosec batching": BATCHED}
Tell = Callable[[str], None]


def started(stack: contextlib.ExitStack, model: Prepared, bare: Bare, peers: Mapping[str, Any]) -> list[Server]:
    """Ours and the peers, all at once, ready."""
    servers = [stack.enter_context(start_worker(model, bare.traffic))]
    for name, settings in peers.items():
        servers.append(stack.enter_context(start_peer(name, model, bare.traffic, LOG, **settings)))
    for server in servers:
        server.wait()
    return servers


def loads(servers: list[Server], connections: int, seconds: int) -> dict[str, Any]:
    """What measures each server."""
    return {server.name: functools.partial(server.load, connections, seconds) for server in servers}


def noop(model: Prepared, rounds: int, seconds: int, tell: Tell) -> dict[str, Any]:
    """The model that does nothing: what the server itself costs."""
    found: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        servers = started(stack, model, stack.enter_context(Bare(model)), TWICE)
        for connections in CONNECTIONS:
            tell(f"{NOOP}, {connections} connections")
            samples = measure(loads(servers, connections, seconds), rounds, tell)
            ratios = {
                "rps against the better of MLServer and KServe": ratio(samples, OURS, V2_PEERS),
                "p99 against the better of MLServer and KServe": ratio(samples, OURS, V2_PEERS, "p99_ms", min),
                "rps against the better setting of LitServe": ratio(samples, OURS, ("litserve", "litserve batching")),
                "rps against Mosec one by one": ratio(samples, OURS, ("mosec",)),
                "rps against the better setting of Mosec": ratio(samples, OURS, ("mosec", "mosec batching")),
            }
            found[str(connections)] = {"medians": summary(samples), "ratios": ratios, "samples": samples}
    return found


def real(model: Prepared, rounds: int, seconds: int, tell: Tell) -> dict[str, Any]:
    """A real model at saturation, beside the same torch model in a bare loop and in every peer."""
    with contextlib.ExitStack() as stack:
        bare = stack.enter_context(Bare(model))
        servers = started(stack, model, bare, REAL)
        tell(f"{model.name}, {CONNECTIONS[-1]} connections")
        sides = {bare.name: functools.partial(bare.load, seconds), **loads(servers, CONNECTIONS[-1], seconds)}
        samples = measure(sides, rounds, tell)
    peers = tuple(REAL)
    ratios = {
        "rps against the bare loop": ratio(samples, OURS, (bare.name,)),
        "rps against the best peer": ratio(samples, OURS, peers),
        "p99 against the best peer": ratio(samples, OURS, peers, "p99_ms", min),
        "p99 against two batches of the bare loop's p99": _tail(samples, bare.name),
    }
    return {"medians": summary(samples), "ratios": ratios, "samples": samples}


def _tail(samples: Samples, bare: str) -> Any:
    """16 connections are two batches: one in the pass and one that waits, so two batches of the loop is the least."""
    waves = CONNECTIONS[-1] / BATCH
    twice = {
        OURS: samples[OURS],
        bare: [{**one, "p99_ms": one["p99_ms"] * waves} for one in samples[bare]],
    }
    return ratio(twice, OURS, (bare,), "p99_ms")
