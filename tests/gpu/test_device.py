"""On a CUDA device: the same answers as on the CPU, no wait for the device at a ramp, and how soon a ramp answers.

Run with `make test-gpu`; prints what it measured.
"""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import torch

from apparate.contract.document import load_documents
from apparate.feedback import FINAL
from apparate.plan import Plan
from apparate_worker.batching import Batcher
from apparate_worker.device import DeviceThread
from apparate_worker.engine import Engine, Schedule, link_to, warm_up
from apparate_worker.errors import NotReady
from apparate_worker.guard import WorkerGuard
from apparate_worker.model.store import load_prepared
from apparate_worker.pending import Pending
from apparate_worker.serving import Serving
from support.models import X, items, write_prepared

pytestmark = pytest.mark.gpu
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
TOLERANCE = 1e-3  # TF32 and other orders of summing


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """(engine on the CPU, engine on the device, ramps), over one prepared folder."""
    path = write_prepared(tmp_path_factory.mktemp("gpu"))
    (document,) = load_documents(path)
    loaded = [load_prepared(document.prepared, document, device) for device in (CPU, CUDA)]
    cpu, gpu = (Engine(one.model, one.heads, link_to(device)) for one, device in zip(loaded, (CPU, CUDA), strict=True))
    return cpu, gpu, loaded[0].catalog.ramps


def outputs(engine, x, schedule, *, shadow=False):
    with torch.inference_mode():
        return {one.step.ramp: one.values.copy() for one in engine.run(engine.start({"x": x}, schedule, shadow=shadow))}


@pytest.mark.parametrize("shadow", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_ramps_and_model_say_on_the_device_what_they_say_on_the_cpu(engines, rows, shadow):
    cpu, gpu, ramps = engines
    x = items(rows)
    schedule = Schedule(Plan.of(1, range(0, ramps, 2), [0.5] * len(range(0, ramps, 2))), ramps)
    here, there = (outputs(engine, x, schedule, shadow=shadow) for engine in (cpu, gpu))
    assert here.keys() == there.keys()
    for ramp, values in here.items():
        np.testing.assert_allclose(there[ramp], values, atol=TOLERANCE)


def test_nothing_waits_for_the_device_while_a_pass_is_launched(engines):
    _, gpu, ramps = engines
    schedule = Schedule(Plan.of(1, range(ramps), [0.5] * ramps), ramps)
    warm_up(gpu, {"x": items(8)}, [schedule])
    torch.cuda.set_sync_debug_mode("error")  # any implicit synchronisation raises
    try:
        assert FINAL in outputs(gpu, items(8), schedule)
    finally:
        torch.cuda.set_sync_debug_mode("default")


async def test_requests_leave_at_the_same_ramps_as_on_the_cpu(engines):
    cpu, gpu, ramps = engines
    x = items(200)
    plan = Plan.of(1, [0], [0.3])
    found = [await _serve(engine, x, plan, ramps) for engine in (cpu, gpu)]
    same = np.mean(np.array(found[0]) == np.array(found[1]))
    assert same >= 0.99  # a score may lie within the tolerance of a threshold


async def _serve(engine, x, plan, ramps):
    class Reports:
        def wants_shadows(self, *, opened):
            return False

        def offer(self, done):
            pass

    class Open(WorkerGuard):
        def admit(self, schedule):
            return schedule

    loop, batcher = asyncio.get_running_loop(), Batcher(max_batch=8, max_delay_s=0.0, max_queue=1000)
    model = Serving(
        engine=engine,
        batcher=batcher,
        inputs=(X,),
        schedule=Schedule(plan, ramps),
        guard=Open(0.01, ramps),
        reports=Reports(),
        loop=loop,
    )
    thread = DeviceThread([model], loop=loop)
    thread.start()
    requests = [Pending({"x": one[None]}, 1, loop.create_future(), loop.time()) for one in x]
    for request in requests:
        batcher.put(request)
    await asyncio.gather(*(request.future for request in requests))
    batcher.close(NotReady("done"))
    assert await thread.ended(30)
    return [request.exits[0] for request in requests]


def test_print_how_soon_the_first_ramp_answers(engines, capsys):
    _, gpu, ramps = engines
    schedule = Schedule(Plan.of(1, [0], [0.5]), ramps)
    first, final = [], []
    for _ in range(200):
        with torch.inference_mode():
            start = time.perf_counter()
            for one in gpu.run(gpu.start({"x": items(8)}, schedule)):
                (final if one.step.ramp == FINAL else first).append(time.perf_counter() - start)
    with capsys.disabled():
        print(
            f"\n{torch.cuda.get_device_name()}: first ramp {np.median(first) * 1e3:.2f} ms, "
            f"model {np.median(final) * 1e3:.2f} ms (medians of {len(first)} passes of 8)"
        )
    assert len(first) == len(final)
