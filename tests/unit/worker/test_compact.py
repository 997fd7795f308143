"""The mode compact: who has an answer goes no further, nobody is made to leave, and a drawn share is checked."""

import asyncio
import time

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from apparate.adaptation.exits import exit_ramps
from apparate.contract.metrics import WORKER
from apparate.contract.resource import Spec
from apparate.contract.wire import decode_feedback, encode_feedback
from apparate.feedback import FINAL, FeedbackBatch
from apparate.plan import Plan
from apparate.service.telemetry import Telemetry
from apparate_worker import serving
from apparate_worker.batching import Batcher
from apparate_worker.compact import Compact, partings
from apparate_worker.device import DeviceThread
from apparate_worker.engine import CpuLink, Engine, Schedule
from apparate_worker.errors import InferenceFailed, NotReady
from apparate_worker.feedback import Identity, Reporter
from apparate_worker.guard import Promise, WorkerGuard
from apparate_worker.metering import Meter, forced
from apparate_worker.passes import Flight, Parked, Pass
from apparate_worker.pending import Item, Pending
from apparate_worker.release import Release
from apparate_worker.serving import Serving
from support.models import X, a_catalog, a_prepared_model, items, no_hook
from unit.worker.test_serving import THRESHOLDS, Reports, wanted

PLAN = Plan.of(3, [0, 2], THRESHOLDS)


class Sampling(WorkerGuard):
    """Never closes, and checks a pass with the probability it is given."""

    share, samples = 0.3, True
    heard, unheard = 0, 0

    def admit(self, schedule):
        return schedule

    def observe(self, wrong, share=1.0):
        self.heard += len(wrong)
        return self.state

    def unchecked(self, answers):
        self.unheard += answers


class Remembering(Reports):
    """Also remembers which passes kept shadows."""

    def wants_shadows(self, *, opened):
        return True


async def serve(x, *, share=0.3, plan=PLAN, hook=no_hook, max_batch=4, remaining_ms=lambda ramp, rows: float(rows)):
    """Serve items all at once; (requests, answers or errors in order, reports, guard, prepared model)."""
    prepared, loop = a_prepared_model(hook=hook, sharp=2.0), asyncio.get_running_loop()
    guard, reports = Sampling(0.01, len(prepared.heads)), Remembering()
    guard.share = share
    batcher = Batcher(max_batch=max_batch, max_delay_s=0.0, max_queue=10_000)
    model = Serving(
        engine=Engine(prepared.model, prepared.heads, CpuLink()),
        batcher=batcher,
        inputs=(X,),
        schedule=Schedule(plan, len(prepared.heads)),
        guard=guard,
        reports=reports,
        loop=loop,
        max_batch=max_batch,
        remaining_ms=remaining_ms,
    )
    thread = DeviceThread([model], loop=loop)
    requests = [Pending({"x": one[None]}, 1, loop.create_future(), time.monotonic()) for one in x]
    thread.start()
    for request in requests:
        batcher.put(request)
    results = await asyncio.gather(*(request.future for request in requests), return_exceptions=True)
    batcher.close(NotReady("done"))
    assert await thread.ended(5)
    return requests, results, reports, guard, prepared


@pytest.mark.parametrize("parting_pays", [True, False])
async def test_every_request_leaves_where_the_exit_rule_says_and_who_leaves_nowhere_has_the_models_own(parting_pays):
    x = items(400)
    left = (lambda ramp, rows: float(rows)) if parting_pays else (lambda ramp, rows: 1.0)
    requests, _, reports, _, prepared = await serve(x, remaining_ms=left)
    errors, labels, final = wanted(prepared, x, [0, 2])
    place = np.array([0, 2, FINAL])[exit_ramps(errors.astype(np.float32), np.array(THRESHOLDS))]
    np.testing.assert_array_equal([request.exits[0] for request in requests], place)
    said = np.where(place == 0, labels[:, 0], np.where(place == 2, labels[:, 1], final))
    np.testing.assert_array_equal([request.labels[0] for request in requests], said)
    assert sum(len(done.items) for done in reports.passes) == 400
    assert [forced(done) for done in reports.passes] == [0] * len(reports.passes)
    shrunk = [done for done in reports.passes if 0 < done.dropped < len(done.items) and FINAL in done.exits]
    assert bool(shrunk) is parting_pays


async def test_rows_that_have_their_answer_are_computed_no_further_unless_they_are_checked():
    rows = dict.fromkeys(range(4), 0)

    def hook(k, value):
        rows[k] += len(value)

    _, _, reports, _, _ = await serve(items(400), plan=Plan.of(1, [0], [1.0]), hook=hook)
    checked = sum(len(done.items) for done in reports.passes if done.whole)
    assert (rows[0], rows[1], rows[3]) == (400, checked, checked)
    assert 0.1 < checked / 400 < 0.5
    assert sum(done.dropped for done in reports.passes) == 400 - checked


async def test_only_checked_passes_tell_the_guard_and_have_final_labels_and_shadows():
    _, _, reports, guard, _ = await serve(items(400))
    checked = [done for done in reports.passes if done.whole]
    assert guard.heard == sum(len(done.items) for done in checked)
    assert guard.unheard == 400 - guard.heard
    assert all(done.share == 0.3 for done in reports.passes)
    assert all(not done.pooled for done in reports.passes if not done.whole)


@pytest.mark.parametrize("share", [0.3, 1.0], ids=["most unchecked", "in doubt"])
async def test_in_a_crowd_passes_keep_their_ramps_and_the_guard_hears_of_each_at_once(share, monkeypatch):
    monkeypatch.setattr(serving, "PARKED_S", 0.0)
    late = []
    monkeypatch.setattr(Parked, "add", lambda self, flight: late.append(flight))
    _, _, reports, _, _ = await serve(items(2000), share=share)
    assert all(done.labels for done in reports.passes)
    assert not late


async def test_the_doubt_of_a_moment_ends_in_a_crowd_too():
    guard, schedule = WorkerGuard(Promise(0.01, 0.1, 0.95)), Schedule(PLAN, 3)
    guard.admit(schedule)
    guard.observe([False] * 50_000)
    guard.observe([True] + [False] * 7, 0.1)
    assert (guard.share, guard.samples) == (1.0, True)
    for _ in range(3):
        guard.observe([False] * 8, 1.0)
    assert guard.share == 0.1


async def test_a_plan_without_open_exits_is_checked_whatever_the_guard_says():
    _, _, reports, guard, _ = await serve(items(40), plan=PLAN.closed())
    assert all((done.whole, done.share) == (True, 1.0) for done in reports.passes)
    assert guard.unheard == 0


async def test_an_item_the_model_raises_on_fails_alone():
    x = items(80)
    x[5] = 1e6

    def hook(k, value):
        if k == 0 and value.abs().max() > 1e5:
            raise RuntimeError("poison")

    _, results, reports, _, _ = await serve(x, hook=hook)
    assert [i for i, one in enumerate(results) if isinstance(one, InferenceFailed)] == [5]
    assert sum(len(done.items) for done in reports.passes) == 79


async def test_when_the_model_raises_after_answers_have_left_they_stand_and_the_others_are_not_drawn_anew():
    raised = []

    def hook(k, value):
        if k == 3 and not raised:
            raised.append(len(value))
            raise RuntimeError("once")

    _, results, reports, guard, _ = await serve(items(80), hook=hook, share=1e-9)
    assert raised
    assert results == [None] * 80
    assert not any(done.whole for done in reports.passes)
    assert guard.heard == 0


def flight_of(rows, answered):
    prepared = a_prepared_model()
    engine = Engine(prepared.model, prepared.heads, CpuLink())
    request = Pending({"x": items(rows)}, rows, None, 0.0)
    one = Pass([Item(request, i) for i in range(rows)], PLAN)
    one.release.at(0, np.where(np.arange(rows) < answered, 0.0, 0.9).astype(np.float32), 0.5)
    return engine, Flight(engine.start({"x": items(rows)}, Schedule(PLAN, 3)), [(one, list(range(rows)))]), one


@pytest.mark.parametrize(("answered", "parting_ms", "left"), [(2, 1.5, 2), (2, 2.5, 4), (4, 99.0, 0), (1, 0.9, 3)])
def test_rows_are_dropped_where_the_profile_says_that_it_pays_for_parting_them(answered, parting_ms, left):
    engine, flight, one = flight_of(4, answered)
    compact = Compact(lambda ramp, rows: float(rows))
    compact.parting_ms = {0: parting_ms}
    found = compact.go_on(engine, flight, 0)
    assert (found.rows if found is not None else 0) == left
    assert (one.dropped, one.left) == (4 - left, left)
    assert one.saved_ms == pytest.approx({4: 0.0, 0: 4.0}.get(left, 4 - left - parting_ms))


def test_what_is_drawn_depends_on_the_seed_and_on_nothing_in_the_batch():
    drawn = []
    for count in (1, 8):
        compact, found = Compact(lambda ramp, rows: 1.0, seed=7), []
        for _ in range(3000):
            one = Pass([Item(Pending({}, count, None, 0.0), i) for i in range(count)], PLAN)
            compact.draw(one, 0.1)
            found.append(one.whole)
        drawn.append(found)
    assert drawn[0] == drawn[1]
    assert np.mean(drawn[0]) == pytest.approx(0.1, abs=0.02)


def test_parting_is_measured_at_every_active_ramp():
    prepared = a_prepared_model()
    engine = Engine(prepared.model, prepared.heads, CpuLink())
    found = partings(engine, {"x": items(8)}, Schedule(PLAN, 3))
    assert set(found) == {0, 2}
    assert all(0 < ms < 50 for ms in found.values())


# Exits that no rule allows.


def counted(passes):
    telemetry = Telemetry(WORKER)
    meter = Meter(telemetry, "default", "tiny", a_catalog(), 4)
    meter.passed(passes)
    text = telemetry.render().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels.get("ramp")
    }


async def test_forced_exits_are_none_and_what_is_checked_dropped_and_saved_is_counted():
    _, _, reports, _, _ = await serve(items(200))
    found = counted(reports.passes)
    assert found["apparate_forced_exits_total"] == 0
    assert found["apparate_checked_answers_total"] == sum(len(d.items) for d in reports.passes if d.whole)
    assert found["apparate_dropped_rows_total"] == sum(d.dropped for d in reports.passes) > 0
    assert found["apparate_saved_seconds_total"] == pytest.approx(sum(d.saved_ms for d in reports.passes) / 1e3)
    assert found["apparate_stopped_passes_total"] == sum(not d.whole and FINAL not in d.exits for d in reports.passes)


async def test_an_exit_that_the_rule_does_not_allow_would_be_counted(monkeypatch):
    allowed = Release.at

    def anybody(self, ramp, errors, threshold, rows=None):
        return allowed(self, ramp, np.zeros_like(errors), threshold, rows)

    monkeypatch.setattr(Release, "at", anybody)
    _, _, reports, _, _ = await serve(items(40))
    assert counted(reports.passes)["apparate_forced_exits_total"] > 0


async def test_a_row_that_was_dropped_without_an_answer_would_be_counted():
    _, _, reports, _, _ = await serve(items(4))
    done = reports.passes[0]
    done.released_at[0] = 0.0
    assert forced(done) == 1


# The mode report is as it was.


class Untouched(Compact):
    """Fails when it is asked to do anything but to leave a pass whole."""

    def draw(self, one, share):
        assert share == 1.0
        state = self._random.getstate()
        super().draw(one, share)
        assert (one.share, one.whole, self._random.getstate()) == (1.0, True, state)

    def go_on(self, engine, flight, ramp):
        raise AssertionError("a pass of the mode report is never stopped")


async def test_in_the_mode_report_nothing_is_drawn_and_every_pass_is_whole():
    prepared, loop = a_prepared_model(sharp=2.0), asyncio.get_running_loop()
    guard, reports, batcher = WorkerGuard(0.5), Reports(), Batcher(max_batch=4, max_delay_s=0.0, max_queue=1000)
    model = Serving(
        engine=Engine(prepared.model, prepared.heads, CpuLink()), batcher=batcher, inputs=(X,),
        schedule=Schedule(PLAN, 3), guard=guard, reports=reports, loop=loop, max_batch=4,
        compact=Untouched(lambda ramp, rows: float(rows)),
    )  # fmt: skip
    thread = DeviceThread([model], loop=loop)
    requests = [Pending({"x": one[None]}, 1, loop.create_future(), time.monotonic()) for one in items(200)]
    thread.start()
    for request in requests:
        batcher.put(request)
        await asyncio.sleep(0)
    await asyncio.gather(*(request.future for request in requests))
    batcher.close(NotReady("done"))
    assert await thread.ended(5)
    assert any((done.exits != FINAL).any() for done in reports.passes)
    assert sum(len(done.final_labels) for done in reports.passes) == 200


BEFORE = (  # the bytes of the batch below, from the version that had no mode compact
    "0a016d1201771801200728033201633802420200024a02000052100000803e0000003f000000000000803f5a100100000000000000020000"
    "0002000000620801000000020000006a0800000000ffffffff7100000000000000407d0000c03f8201080000803f00000040880101"
)


def test_what_the_mode_report_sends_is_byte_for_byte_what_it_was():
    batch = FeedbackBatch(
        "m", "w", 1, 7, 3, 2, (0, 2),
        errors=np.array([[0.25, 0.5], [0, 1]], np.float32), labels=np.array([[1, 0], [2, 2]], np.int32),
        final_labels=np.array([1, 2], np.int32), exits=np.array([0, FINAL], np.int32), catalog="c", started_at=2.0,
        service_ms=1.5, released_ms=np.array([1, 2], np.float32), guarded=True,
    )  # fmt: skip
    assert encode_feedback(batch).hex() == BEFORE
    assert decode_feedback(bytes.fromhex(BEFORE)).share == 1.0


# What reaches the controller, and what the spec says.


async def test_unchecked_passes_take_no_number_and_make_no_entry():
    class Sender:
        def __init__(self):
            self.entries = []

        def start(self):
            pass

        def offer(self, entries):
            self.entries += entries

        def stop(self, within_s):
            pass

    _, _, reports, _, _ = await serve(items(100))
    counted_passes, sender = [], Sender()
    counts = counted_passes.extend
    reporter = Reporter(Identity("m", "w", 1, "c"), [], shadow_share=0.0, sender=sender, on_passes=counts)
    reporter.start()
    for done in reports.passes:
        done.pooled.clear()
        reporter.offer(done)
    await asyncio.to_thread(reporter.stop, 5)
    batches = [decode_feedback(one) for one in sender.entries]
    checked = [done for done in reports.passes if done.whole]
    assert len(counted_passes) == len(reports.passes) > len(checked)
    assert [one.seq for one in batches] == list(range(len(checked)))
    assert {one.share for one in batches} == {0.3}


def a_spec(**serving):
    model = {"source": "m", "entrypoint": "m:m"}
    return Spec.model_validate({"model": model, "bootstrap": {"data": "d.npz"}, "serving": serving})


@pytest.mark.parametrize(
    ("serving", "share"),
    [({}, 1.0), ({"compact": {"fullShare": 0.2}}, 1.0), ({"mode": "compact"}, 0.1),
     ({"mode": "compact", "compact": {"fullShare": 0.2}}, 0.2)],
)  # fmt: skip
def test_the_mode_says_how_likely_a_batch_is_checked(serving, share):
    assert a_spec(**serving).serving.checked_share == share


def test_a_guard_starts_with_empty_books_when_the_mode_changes_and_not_when_only_the_confidence_of_report_does():
    budget = a_spec().budget
    guard, schedule = WorkerGuard(Promise.of(budget, 1.0)), Schedule(PLAN, 3)
    guard.admit(schedule)
    guard.observe([False] * 1000)
    guard.keep(Promise.of(budget.model_copy(update={"confidence": 0.99}), 1.0))
    assert guard.admit(schedule) is schedule
    guard.keep(Promise.of(budget, 0.1))
    assert not guard.admit(schedule).plan.exits_open


def test_answers_of_the_plain_model_earn_the_reserve_too():
    guard, schedule = WorkerGuard(Promise(0.01, 0.1, 0.95)), Schedule(PLAN, 3)
    guard.admit(Schedule(Plan(0), 3))
    guard.served_plain(50_000)
    assert guard.admit(schedule) is schedule
    assert guard.share == 0.1
