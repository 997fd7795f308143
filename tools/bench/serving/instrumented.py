"""A worker like any other, with two switches of the benchmark's own.

BENCH_LAG_FILE: a task of the event loop notes how late the loop is with it, and writes that into this file at the end.
BENCH_NO_FEEDBACK: plans are followed, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import apparate_worker.feedback as feedback

TICK_S = 0.002
LAG_FILE = Path(os.environ.get("BENCH_LAG_FILE", os.devnull))

if os.environ.get("BENCH_NO_FEEDBACK"):
    feedback.RedisSender = lambda *_: None  # type: ignore[misc,assignment]

import apparate_worker.__main__ as worker  # noqa: E402 - after the switch: it takes the name from there


async def tick(late_ms: list[float]) -> None:
    """Note forever how late the loop is."""
    while True:
        due = time.perf_counter() + TICK_S
        await asyncio.sleep(TICK_S)
        late_ms.append((time.perf_counter() - due) * 1e3)


async def serve_and_tick(*arguments: Any) -> int:
    """Serve, and tell of the loop at the end."""
    late_ms: list[float] = []
    ticking = asyncio.create_task(tick(late_ms))
    try:
        return await SERVE(*arguments)
    finally:
        ticking.cancel()
        LAG_FILE.write_text(json.dumps(late_ms))  # noqa: ASYNC240 - nothing else is left to do


SERVE = worker.serve
if os.environ.get("BENCH_LAG_FILE"):
    worker.serve = serve_and_tick

if __name__ == "__main__":
    sys.exit(worker.main())
