"""The device thread: whatever parts, waits and joins on the way, every request gets one answer and whole feedback."""

import asyncio
import math
import time

import numpy as np
import pytest
import torch

from apparate.adaptation.exits import exit_ramps
from apparate.feedback import FINAL
from apparate.plan import Plan
from apparate_worker import serving
from apparate_worker.batching import Batcher
from apparate_worker.device import DeviceThread
from apparate_worker.engine import CpuLink, Engine, Schedule
from apparate_worker.errors import InferenceFailed, NotReady
from apparate_worker.feedback import Identity, RedisSender, Reporter
from apparate_worker.guard import WorkerGuard
from apparate_worker.passes import Flight, Pass
from apparate_worker.pending import Item, Pending
from apparate_worker.serving import Serving
from support.eventually import eventually_async
from support.models import X, a_prepared_model, items, no_hook

THRESHOLDS = [0.05, 0.08]
PLAN = Plan.of(3, [0, 2], THRESHOLDS)


class Reports:
    """Keeps every pass; wants shadows on every `every`-th, 0: never."""

    def __init__(self, every=0):
        self.passes, self.asked, self.every = [], 0, every

    def wants_shadows(self, *, opened):
        self.asked += 1
        return not opened or (bool(self.every) and self.asked % self.every == 0)

    def offer(self, done):
        self.passes.append(done)


class OpenGuard(WorkerGuard):
    """Never closes: what parts and joins is looked at here, not the budget."""

    def admit(self, schedule):
        return schedule


def a_model(prepared, *, plan=PLAN, guard=None, reports=None, max_batch=4):
    """A model to serve with a queue of its own, and a guard that never closes."""
    return Serving(
        engine=Engine(prepared.model, prepared.heads, CpuLink()),
        batcher=Batcher(max_batch=max_batch, max_delay_s=0.0, max_queue=1000),
        inputs=(X,),
        schedule=Schedule(plan, len(prepared.heads)),
        guard=guard or OpenGuard(0.01),
        reports=reports or Reports(),
        loop=asyncio.get_running_loop(),
        max_batch=max_batch,
    )


async def serve(x, *, plan=PLAN, gap_s=0.0, every=0, hook=no_hook, max_batch=4, together=1, alone=0, seed=None):
    """Serve items one request each (or `together` at once); (answers or errors in order, reports, prepared model).

    alone: so many of the last come one by one, each when those before it have their answers.

    seed: requests come in bursts of random size with random gaps instead.
    """
    random = np.random.default_rng(seed)
    prepared = a_prepared_model(hook=hook, sharp=2.0)
    reports = Reports(every)
    model = a_model(prepared, plan=plan, reports=reports, max_batch=max_batch)
    requests = [
        Pending({"x": one[None]}, 1, asyncio.get_running_loop().create_future(), asyncio.get_running_loop().time())
        for one in x
    ]
    thread = DeviceThread([model], loop=asyncio.get_running_loop())
    thread.start()
    for number, request in enumerate(requests):
        if number >= len(requests) - alone:
            await asyncio.wait([one.future for one in requests[:number]])
        model.batcher.put(request)
        if seed is not None and random.random() < 0.2:
            await asyncio.sleep(random.choice([0.0, 0.0005, 0.003]))
        elif seed is None and number % together == together - 1:
            await asyncio.sleep(gap_s)
    results = await asyncio.gather(*(request.future for request in requests), return_exceptions=True)
    model.batcher.close(NotReady("done"))
    assert await thread.ended(5)
    return requests, results, reports, prepared


def wanted(prepared, x, ramps):
    """([N, R] errors, [N, R] labels, [N] final labels) of whole passes."""
    with torch.inference_mode():
        engine = Engine(prepared.model, prepared.heads, CpuLink())
        plan = Plan.of(1, ramps, [0.0] * len(ramps))
        *said, final = engine.run(engine.start({"x": x}, Schedule(plan, len(prepared.heads))))
    probabilities = [torch.softmax(torch.from_numpy(one.values), 1).numpy() for one in said]
    errors = np.column_stack([1 - p.max(1) for p in probabilities])
    return errors, np.column_stack([p.argmax(1) for p in probabilities]), final.values.argmax(1)


@pytest.mark.parametrize(
    "arrivals",
    [
        {"together": 1},
        {"together": 40},
        {"gap_s": 0.002},
        {"gap_s": 0.002, "together": 3},
        *({"seed": s} for s in range(6)),
    ],
    ids=str,
)
async def test_every_request_leaves_where_the_exit_rule_says_and_is_reported_whole(arrivals, monkeypatch):
    monkeypatch.setattr(serving, "PARKED_S", 0.002)  # parked rows go on among everything else
    monkeypatch.setattr(Serving, "_room", lambda self, rows: True)
    monkeypatch.setattr(Serving, "_relieved", lambda self, schedule: schedule)
    x = items(400)
    slow = {"hook": lambda k, value: time.sleep(0.0003)} if "seed" in arrivals else {}
    requests, _, reports, prepared = await serve(x, every=3, **arrivals, **slow)
    errors, labels, final = wanted(prepared, x, [0, 2])
    place = np.array([0, 2, FINAL])[exit_ramps(errors.astype(np.float32), np.array(THRESHOLDS))]
    assert 0.2 < (place != FINAL).mean() < 0.95  # some leave, some do not
    np.testing.assert_array_equal([request.exits[0] for request in requests], place)
    said = np.where(place == 0, labels[:, 0], np.where(place == 2, labels[:, 1], final))
    np.testing.assert_array_equal([request.labels[0] for request in requests], said)

    number = {id(request): i for i, request in enumerate(requests)}
    seen = []
    for done in reports.passes:
        rows = [number[id(item.request)] for item in done.items]
        seen += rows
        np.testing.assert_array_equal(done.exits, place[rows])
        np.testing.assert_array_equal(done.final_labels, final[rows])
        np.testing.assert_allclose(done.errors[0], errors[rows, 0], atol=1e-5)
        np.testing.assert_allclose(done.errors[2], errors[rows, 1], atol=1e-5)
        assert (done.released_s > 0).all()
        for pooled in done.pooled.values():
            assert len(pooled) == len(rows)
            assert np.abs(pooled).sum(axis=1).all()
    assert sorted(seen) == list(range(400))


async def test_answered_rows_of_several_passes_go_on_as_one_batch():
    sizes = []
    await serve(
        items(64), plan=Plan.of(1, [0], [1.0]), hook=lambda k, value: sizes.append((k, len(value))), max_batch=8
    )
    tails = [size for k, size in sizes if k == 3]
    assert sum(tails) == 64
    assert max(tails) > 1


async def test_who_waits_for_an_answer_goes_before_those_who_have_one():
    order = []
    await serve(items(2), plan=Plan.of(1, [0], [1.0]), hook=lambda k, value: order.append(k), together=2, max_batch=1)
    assert order[:2] == [0, 0]  # the second's first segment before the rest of the first


async def test_a_plan_without_open_exits_runs_whole_passes_with_shadows():
    _, _, reports, _ = await serve(items(8), plan=PLAN.closed(), gap_s=0.01)
    assert all(set(done.pooled) == {1} for done in reports.passes)


async def test_in_a_crowd_rows_step_aside_while_there_is_room_and_then_most_passes_have_no_ramps():
    _, _, reports, _ = await serve(items(800), together=800)
    with_ramps = [bool(done.labels) for done in sorted(reports.passes, key=lambda done: done.started)]
    assert all(with_ramps[:10])
    assert 1 / 32 < np.mean(with_ramps) < 0.6
    assert any(with_ramps[-64:-2])  # feedback never ends
    assert all(done.plan.revision == PLAN.revision for done in reports.passes)


async def test_what_has_stood_aside_too_long_is_taken_on_although_the_queue_does_not_end(monkeypatch):
    monkeypatch.setattr(serving, "PARKED_S", 0.0)
    monkeypatch.setattr(Serving, "_crowd", lambda self: False)
    _, _, reports, _ = await serve(items(400), together=400)
    started = np.array([done.started for done in reports.passes])  # in the order of their ends
    assert np.abs(started.argsort().argsort() - np.arange(len(started))).max() < 10


async def test_a_crowd_that_outlasts_what_stood_aside_gets_passes_without_ramps_although_there_is_room(monkeypatch):
    monkeypatch.setattr(serving, "PARKED_S", 0.0)
    monkeypatch.setattr(serving, "PARKED_BATCHES", 1000)
    _, _, reports, _ = await serve(items(400), together=400)
    assert np.mean([bool(done.labels) for done in reports.passes]) < 0.3


@pytest.mark.parametrize(("rested", "back"), [(0.0, True), (1e9, False)], ids=["it has rested", "it has not"])
async def test_once_ramps_are_off_they_stay_off_until_the_device_has_rested(rested, back, monkeypatch):
    monkeypatch.setattr(serving, "PARKED_S", 0.0)
    monkeypatch.setattr(serving, "RESTED", rested)
    _, _, reports, _ = await serve(items(432), together=400, alone=32)
    last = sorted(reports.passes, key=lambda done: done.started)[-15:]
    assert [bool(done.labels) for done in last].count(back) >= 14  # one of so many has them anyway


async def test_passes_that_keep_their_ramps_in_a_crowd_for_feedback_let_nobody_go(monkeypatch):
    monkeypatch.setattr(Serving, "_room", lambda self, rows: False)  # nothing can be put off from the first on
    monkeypatch.setattr(serving, "RESTED", 1e9)
    _, _, reports, _ = await serve(items(800), together=800)
    crowded = [done for done in sorted(reports.passes, key=lambda done: done.started)[1:-5] if done.labels]
    assert len(crowded) >= 3
    assert all((done.exits == FINAL).all() for done in crowded)


async def test_parked_rows_wait_for_company_and_not_long(monkeypatch):
    prepared, loop = a_prepared_model(sharp=2.0), asyncio.get_running_loop()
    model = a_model(prepared, plan=Plan.of(3, [0], [1.0]))
    assert model.tidy_s == math.inf  # nothing is parked

    def park(rows):
        request = Pending({"x": items(rows)}, rows, loop.create_future(), time.monotonic())
        with torch.inference_mode():
            model.serve([Item(request, i) for i in range(rows)])

    monkeypatch.setattr(serving, "COMPANY_S", 1e3)
    monkeypatch.setattr(serving, "COMPANY_PASSES", 1e3 / model.batcher.pass_s)
    park(3)
    assert 900 < model.tidy_s <= 1000  # alone, they may wait
    park(4)
    park(1)
    assert model.parked == 2 * 4
    assert model.tidy_s == 0.0  # as many as go on together
    monkeypatch.setattr(model, "_tail_batch", 100)
    assert model.tidy_s > 900
    monkeypatch.setattr(serving, "COMPANY_S", 0.0)
    assert model.tidy_s == 0.0  # long enough


async def test_in_a_quiet_moment_parked_rows_reach_the_end_although_no_others_come():
    prepared, loop, reports = a_prepared_model(sharp=2.0), asyncio.get_running_loop(), Reports()
    model = a_model(prepared, plan=Plan.of(3, [0], [1.0]), reports=reports)
    thread = DeviceThread([model], loop=loop)
    thread.start()
    model.batcher.put(request := Pending({"x": items(1)}, 1, loop.create_future(), time.monotonic()))
    await request.future
    assert request.exits[0] == 0
    await eventually_async(lambda: reports.passes)
    model.batcher.close(NotReady("done"))
    assert await thread.ended(5)


class HearingGuard(OpenGuard):
    """Knows of how many answers it has heard what became of them."""

    heard = 0

    def observe(self, wrong, share=1.0):
        self.heard += len(wrong)
        return self.state


@pytest.mark.parametrize("leaving", [1, 4], ids=["one of each batch", "all of each batch"])
async def test_the_guard_hears_late_of_so_many_answers_at_most_although_nobody_waits(leaving):
    prepared = a_prepared_model(sharp=2.0)
    guard, x = HearingGuard(0.01), items(400)
    by_error = wanted(prepared, x, [0])[0][:, 0].argsort()
    threshold = float(wanted(prepared, x, [0])[0][by_error[200], 0])
    rows = x[[*by_error[:leaving], *by_error[len(x) + leaving - 4 :]]]
    loop = asyncio.get_running_loop()
    model = a_model(prepared, plan=Plan.of(3, [0], [threshold]), guard=guard)
    late = []
    with torch.inference_mode():
        for number in range(1, 101):
            request = Pending({"x": rows}, 4, loop.create_future(), time.monotonic())
            model.serve([Item(request, i) for i in range(4)])
            late.append(4 * number - guard.heard)
    assert 0 < max(late) <= 4 * serving.OPEN_BATCHES
    assert model._parked.rows <= 4 * serving.PARKED_BATCHES


def test_shadows_are_drawn_more_often_before_an_exit_has_been_open_and_never_at_a_share_of_none():
    sender = RedisSender("redis://127.0.0.1:1", "nobody-connects")
    reporter = Reporter(Identity("m", "w", 1, "c"), [], shadow_share=0.2, early_share=0.6, sender=sender)
    early = np.mean([reporter.wants_shadows(opened=False) for _ in range(2000)])
    later = np.mean([reporter.wants_shadows(opened=True) for _ in range(2000)])
    assert early == pytest.approx(0.6, abs=0.05)
    assert later == pytest.approx(0.2, abs=0.05)
    reporter.shadow_share = 0.0
    assert not any(reporter.wants_shadows(opened=False) for _ in range(50))


async def test_the_plain_model_has_no_shadows():
    _, _, reports, _ = await serve(items(8), plan=Plan(0), every=1, together=8)
    assert all(not done.pooled for done in reports.passes)


async def test_an_item_the_model_raises_on_fails_alone():
    x = items(12)
    x[5] = 1e6

    def hook(k, value):
        if k == 0 and value.abs().max() > 1e5:
            raise RuntimeError("poison")

    _, results, reports, _ = await serve(x, hook=hook, together=12)
    assert [i for i, result in enumerate(results) if isinstance(result, InferenceFailed)] == [5]
    assert sum(len(done.items) for done in reports.passes) == 11


async def test_when_the_model_raises_on_answered_rows_the_answers_stand_and_later_requests_are_served():
    raised = []

    def hook(k, value):
        if k == 3 and not raised:
            raised.append(k)
            raise RuntimeError("once")

    _, results, reports, _ = await serve(items(30), plan=Plan.of(1, [0], [1.0]), hook=hook, gap_s=0.001)
    assert raised
    assert results == [None] * 30
    assert 0 < sum(len(done.items) for done in reports.passes) < 30


async def test_answered_rows_that_reach_the_end_first_do_not_answer_for_those_behind():
    prepared = a_prepared_model()
    loop = asyncio.get_running_loop()
    reports = Reports()
    model = a_model(prepared, reports=reports)
    request = Pending({"x": items(4)}, 4, loop.create_future(), time.monotonic())
    one = Pass([Item(request, i) for i in range(4)], PLAN)
    one.release.at(0, np.array([0.0, 0.0, 0.9, 0.9], np.float32), 0.5)
    with torch.inference_mode():
        journey = model._engine.start({"x": items(4)}, model.schedule)
        ahead, behind = Flight(journey, [(one, [0, 1, 2, 3])]).divide(model._engine, [0, 1])
        model._go_on([ahead], to_end=True)
        assert not reports.passes
        model._leg(behind)
    await asyncio.sleep(0)
    assert [len(done.items) for done in reports.passes] == [4]
