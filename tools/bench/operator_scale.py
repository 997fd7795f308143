"""The operator with many models on a real API server: how fast, how quiet, how large.

    python tools/bench/operator_scale.py [--models 1000] [--changes 200] [--quiet-seconds 60]

Starts a control plane and an operator of its own, makes the models at once, plays the kubelet for their pods, and
prints a table and one JSON object: seconds until every model has its children and a status; API writes a minute once
all is settled; time from a change of a spec to its Deployment; memory; writes after a restart. Everything shares this
machine's cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kube_cluster import Api, Kubelet, SeenReplicas, writes_between
from operator_process import OperatorProcess

from apparate_cluster.control_plane import ControlPlane

LIMIT_S = 600.0
CONTROLLERS = "*,-persistentvolume-binder-controller"  # it repeats an Event for each claim that nobody provisions
CALM_S = 10.0  # so long without a write means settled
TARGETS = {
    "reconciled_s": 120.0,
    "quiet_writes_per_minute": 0.0,
    "change_p99_s": 2.0,
    "rss_mb": 250.0,
    "restart_child_writes": 0.0,
}
WHAT = {
    "reconciled_s": "all models have children and a status, s",
    "ready_s": "then all prepared and ready, s",
    "settled_s": "then no more writes after, s",
    "quiet_writes_per_minute": "API writes a minute once settled",
    "change_p50_s": "spec change to its Deployment, median, s",
    "change_p99_s": "spec change to its Deployment, p99, s",
    "rss_mb": "operator's memory, MB",
    "peak_rss_mb": "operator's memory at its peak, MB",
    "restart_s": "restart until it has looked at every model, s",
    "restart_child_writes": "writes to children after the restart",
}


def main() -> int:
    """Command line; the exit status is 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=200, help="spec changes that are timed")
    parser.add_argument("--quiet-seconds", type=float, default=60, help="how long writes are counted once settled")
    asked = parser.parse_args()
    with a_cluster() as (plane, folder):
        api = Api(plane.kubeconfig)
        api.prepare()
        with contextlib.closing(OperatorProcess(plane.kubeconfig, folder / "operator.log")) as operator:
            try:
                found = measure(api, operator, asked.models, asked.changes, asked.quiet_seconds)
            except BaseException:
                say(f"the operator's log ends:\n{operator.log_tail()}")
                raise
    print_table(found, asked.models)
    print(json.dumps({"models": asked.models, **found}))
    return int(any(found[name] > limit for name, limit in TARGETS.items()))


@contextlib.contextmanager
def a_cluster() -> Iterator[tuple[ControlPlane, Path]]:
    """A control plane in a temporary folder, and room for logs."""
    with tempfile.TemporaryDirectory(prefix="apparate-bench-") as scratch:
        plane = ControlPlane(Path(scratch) / "plane", controllers=CONTROLLERS)
        try:
            plane.start()
            yield plane, Path(scratch)
        finally:
            plane.stop()


def measure(api: Api, operator: OperatorProcess, models: int, changes: int, quiet_s: float) -> dict[str, float]:
    """Every figure, in the order of a cluster's life."""
    operator.start()
    found = {}
    names = [f"model-{number:04}" for number in range(models)]
    say(f"making {models} models")
    began = time.monotonic()
    with ThreadPoolExecutor(8) as several:
        list(several.map(api.create_model, names))
    say(f"made in {time.monotonic() - began:.1f} s")
    wait(lambda: api.reconciled() >= models, "children and status", progress=api.reconciled)
    found["reconciled_s"] = time.monotonic() - began
    with contextlib.closing(Kubelet(api)):
        began = time.monotonic()
        wait(lambda: api.ready() >= models, "ready", progress=api.ready)
        found["ready_s"] = time.monotonic() - began
        found["settled_s"] = settle(api)
        before = api.writes()
        time.sleep(quiet_s)
        quiet = writes_between(before, api.writes())
        say(f"writes in {quiet_s:.0f} s: {quiet or 'none'}")
        found["quiet_writes_per_minute"] = sum(quiet.values()) * 60 / quiet_s
        found["rss_mb"] = operator.memory_mb("VmRSS")
        found |= change(api, names, changes)
        found["peak_rss_mb"] = operator.memory_mb("VmHWM")
        settle(api)
        found |= restart(api, operator)
    return found


def change(api: Api, names: list[str], changes: int) -> dict[str, float]:
    """Seconds from just before the change of a spec to the watch event of its Deployment."""
    took = []
    with contextlib.closing(SeenReplicas(api)) as seen:
        for number in range(changes):
            name, replicas = names[number * 7 % len(names)], 2 + number // len(names)
            began = time.monotonic()
            api.scale(name, replicas)
            took.append(seen.wait(name, replicas) - began)
    took.sort()
    return {"change_p50_s": statistics.median(took), "change_p99_s": took[int(len(took) * 0.99)]}


def restart(api: Api, operator: OperatorProcess) -> dict[str, float]:
    """What a new operator writes when nothing is to be done."""
    before, children = api.writes(), api.child_versions()
    operator.stop()
    began = time.monotonic()
    operator.start()
    wait(operator.idle, "an idle operator after its restart")
    took = time.monotonic() - began
    written = writes_between(before, api.writes())
    say(f"writes after the restart: {written or 'none'}; children changed: {len(api.child_versions() ^ children)}")
    return {"restart_s": took, "restart_child_writes": float(sum(written.values()))}


def settle(api: Api) -> float:
    """Seconds until nothing was written for a while."""
    began = quiet_since = time.monotonic()
    before = api.writes()
    while time.monotonic() - quiet_since < CALM_S:
        if time.monotonic() - began > LIMIT_S:
            raise SystemExit(f"not settled after {LIMIT_S} s; still written: {writes_between(before, api.writes())}")
        time.sleep(1)
        now = api.writes()
        if writes_between(before, now):
            before, quiet_since = now, time.monotonic()
    return quiet_since - began


def wait(done: Callable[[], bool], what: str, progress: Callable[[], int] | None = None) -> None:
    """Wait with a bound, and say now and then how far it is."""
    began = said = time.monotonic()
    while not done():
        now = time.monotonic()
        if now - began > LIMIT_S:
            raise SystemExit(f"{what}: not after {LIMIT_S} s")
        if progress and now - said > 10:
            said = now
            say(f"{what}: {progress()} after {now - began:.0f} s")
        time.sleep(0.5)


def say(text: str) -> None:
    """One line of progress."""
    print(f"bench-operator: {text}", file=sys.stderr, flush=True)


def print_table(found: dict[str, float], models: int) -> None:
    """The figures for people."""
    print(f"\n{f'{models} models':56} {'measured':>9}  {'target':>7}")
    for name, what in WHAT.items():
        limit = TARGETS.get(name)
        verdict = "" if limit is None else f"{limit:7g}  {'ok' if found[name] <= limit else 'MISSED'}"
        print(f"{what:56} {found[name]:9.2f}  {verdict}")
    print()


if __name__ == "__main__":
    sys.exit(main())
