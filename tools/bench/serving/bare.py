"""The same torch model without a server: whole batches in a loop, one thread.

    python bare.py ENTRYPOINT WEIGHTS INPUTS.npz BATCH SCORES.npy

Writes what the model says of every input, prints a line when it is ready, then takes seconds from stdin, runs so long,
and prints rows, seconds and times of a batch.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch


def main() -> int:
    """See the module."""
    entrypoint, weights, file, size, scores = sys.argv[1:]
    torch.set_num_threads(1)
    module, _, function = entrypoint.partition(":")
    model = getattr(importlib.import_module(module), function)(Path(weights)).eval()
    with np.load(file) as arrays:
        inputs = [torch.from_numpy(arrays[name]) for name in arrays.files]
    batches = list(zip(*(one.split(int(size)) for one in inputs), strict=True))
    with torch.inference_mode():
        np.save(scores, torch.cat([model(*batch) for batch in batches]).numpy())
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            print(json.dumps(run(model, batches, float(line))), flush=True)
    return 0


def run(model: torch.nn.Module, batches: list[tuple[torch.Tensor, ...]], seconds: float) -> dict[str, float]:
    """Batch after batch for so long."""
    times: list[float] = []
    rows, start = 0, time.perf_counter()
    before = start
    while before - start < seconds:
        batch = batches[len(times) % len(batches)]
        model(*batch).numpy()
        rows += len(batch[0])
        now = time.perf_counter()
        times.append(now - before)
        before = now
    p50, p99 = np.percentile(times, [50, 99]) * 1e3
    return {"requests": rows, "seconds": before - start, "p50_ms": float(p50), "p99_ms": float(p99), "failed": 0}


if __name__ == "__main__":
    sys.exit(main())
