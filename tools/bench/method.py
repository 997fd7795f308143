"""How fast the method is here, on one thread and made-up feedback: `python tools/bench/method.py [--json FILE]`."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from apparate.adaptation.certified import certified
from apparate.adaptation.exits import replay
from apparate.adaptation.hill_climb import hill_climb
from apparate.adaptation.ramps import choose_ramps, utilities
from apparate.adaptation.sweep import sweep
from apparate.catalog import RampCatalog
from apparate.feedback import FINAL, FeedbackBatch, Records

SIZES = (1, 2, 4, 8)


def main() -> None:
    """Measure each, print a table, and write JSON when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    found = [measure(*case, repeats=arguments.repeats) for case in cases()]
    found.append(feeding("feeding a session, batches of 32, no decision due", ">= 500000", paused=True))
    found.append(feeding("the same with all its decisions", "-", paused=False))
    for row in found:
        print(f"{row['what']:48} {row['median']:12.2f} {row['unit']:10} wanted {row['wanted']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


def cases() -> list[tuple[str, str, Callable[[], object]]]:
    """What is measured, what is wanted of it, and how it is called; milliseconds."""
    large, twelve = window(8192, 12), catalog(12)
    small, ten = window(2048, 10), catalog(10)
    wide, many = window(2048, 27), catalog(27)
    return [
        ("replay of 8,192 x 12", "<= 1", lambda: replay(large, [0.05] * 12, twelve, range(12))),
        ("certified tuning of 8,192 x 12", "<= 60", lambda: certified(large, twelve, range(12), 0.01)),
        ("sweep of 2,048 x 10", "<= 30", lambda: sweep(small, ten, range(10), 0.01)),
        ("hill climb of 2,048 x 10, 0.01 / 0.001", "-", lambda: hill_climb(small, ten, range(10), 0.01)),
        ("utilities of 8,192 x 12", "-", lambda: utilities(large, [0.05] * 12, twelve, range(12))),
        ("choice of 2 of 27 ramps, 2,048 records", "<= 1500", lambda: choose_ramps(wide, many, 0.0081, 0.01)),
        ("choice of 5 of 27 ramps, 2,048 records", "<= 1500", lambda: choose_ramps(wide, many, 0.0201, 0.01)),
    ]


def measure(what: str, wanted: str, call: Callable[[], object], *, repeats: int) -> dict[str, Any]:
    """Median of several calls."""
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        taken.append(1000 * (time.perf_counter() - started))
    return {"what": what, "median": statistics.median(taken), "unit": "ms", "wanted": wanted}


def feeding(what: str, wanted: str, *, paused: bool) -> dict[str, Any]:
    """Records a session takes in each second from decoded batches."""
    from apparate.contract.resource import Spec
    from apparate_controller.session import ModelSession

    ramps = catalog(12)
    model = {"source": "bench", "entrypoint": "bench:model"}
    spec = Spec.model_validate({"model": model, "bootstrap": {"data": "bench.npz"}, "adaptation": {"paused": paused}})
    session = ModelSession(ramps, spec)
    session.start()
    table, count = window(32 * 2000, 12), 32
    batches = [batch_of(table.take(slice(i, i + count)), i // count, session) for i in range(0, len(table), count)]
    started = time.perf_counter()
    for batch in batches:
        session.feed(batch)
    rate = len(table) / (time.perf_counter() - started)
    return {"what": what, "median": rate, "unit": "records/s", "wanted": wanted}


def batch_of(records: Records, seq: int, session: Any) -> FeedbackBatch:
    """A batch that ran under the session's plan, every other ramp a shadow; nothing was released early."""
    active, n = session.plan.active, len(records)
    return FeedbackBatch(
        model="bench/model",
        worker="worker-0",
        epoch=1,
        seq=seq,
        revision=session.plan.revision,
        padded_size=n,
        ramps=tuple(range(records.ramps)),
        errors=records.errors,
        labels=records.agree.astype(np.int32),
        final_labels=np.ones(n, np.int32),
        exits=np.full(n, FINAL),
        shadow=tuple(r not in active for r in range(records.ramps)),
        catalog=session.catalog.digest,
    )


def catalog(ramps: int) -> RampCatalog:
    """Evenly spaced ramps, 0.4 % of the pass each."""
    sizes = np.array(SIZES, float)[:, None]
    reach = sizes * (np.arange(ramps) + 1) / (ramps + 1)
    return RampCatalog(SIZES, reach, np.full((1, ramps), 0.004) * sizes, sizes[:, 0])


def window(n: int, ramps: int) -> Records:
    """Feedback whose errors are calibrated: deeper ramps are surer and more often right."""
    rng = np.random.default_rng(0)
    logit = np.linspace(0.3, 2.5, ramps) + rng.normal(0, 1.3, (n, 1)) + rng.normal(0, 0.7, (n, ramps))
    sureness = 0.5 + 0.5 / (1.0 + np.exp(-2.0 * logit))
    return Records((1 - sureness).astype(np.float32), rng.random((n, ramps)) < sureness, rng.choice(SIZES, n))


if __name__ == "__main__":
    main()
