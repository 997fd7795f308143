"""Feedback as a table: its columns, what answers saved, and the judgement in hindsight."""

from __future__ import annotations

import json

import numpy as np
import pytest

from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.feedback import FeedbackBatch
from apparate.plan import Plan
from apparate_demo.hindsight import second_half
from apparate_demo.recording import Guarding, Table, achieved_ms, server_times

CATALOG = RampCatalog((1, 8), [[2.0, 6.0], [16.0, 48.0]], [[0.1, 0.1], [0.4, 0.4]], [10.0, 80.0], layers=("a", "b"))


def a_batch(n=2, *, ramps=(0, 1), exits=None, size=1, revision=1, seq=0, guarded=False, wrong=0) -> FeedbackBatch:
    errors = np.tile(np.linspace(0.1, 0.5, n, dtype=np.float32)[:, None], (1, len(ramps)))
    labels = np.zeros((n, len(ramps)), np.int32)
    labels[:wrong] = 1
    left = np.full(n, -1, np.int32) if exits is None else np.array(exits, np.int32)
    return FeedbackBatch(
        "default/m/local", "w", 1, seq, revision, max(size, n), ramps, errors, labels, np.zeros(n, np.int32), left,
        service_ms=9.0, released_ms=np.full(n, 4.0, np.float32), guarded=guarded,
    )  # fmt: skip


def test_a_ramp_that_did_not_report_is_nan_in_the_table():
    table = Table.of([a_batch(), a_batch(ramps=(1,))], 2)
    assert np.isnan(table.err[:, 0]).tolist() == [False, False, True, True] and not np.isnan(table.err[:, 1]).any()


def test_an_empty_recording_is_an_empty_table():
    assert len(Table.of([], 2)) == 0


def test_an_early_answer_saves_the_rest_of_the_pass_but_pays_its_ramps():
    table = Table.of([a_batch(exits=(0, -1), size=2)], 2)
    assert achieved_ms(table, CATALOG, {1: (0, 1)}).tolist() == pytest.approx([80 - 16.4, -0.8])


def test_the_plain_model_saves_nothing():
    assert achieved_ms(Table.of([a_batch(revision=0)], 2), CATALOG, {}).tolist() == [0.0, 0.0]


def test_a_recording_is_a_table_and_a_catalog_that_reads_back(tmp_path):
    beside = Table.of([a_batch()], 2).save(tmp_path / "r.npz", CATALOG)
    with np.load(tmp_path / "r.npz") as file:
        assert file["err"].shape == (2, 2) and set(file.files) >= {"err", "top1", "final", "batch"}
    assert RampCatalog.from_json(json.loads(beside.read_text())).digest == CATALOG.digest


def test_times_in_the_worker_are_medians_over_requests():
    told = server_times([a_batch(), a_batch(n=8)])
    assert told["released_p50_ms"] == pytest.approx(4.0) and told["batch_mean"] == pytest.approx((4 + 64) / 10)


def test_a_guard_that_stays_closed_is_one_alarm():
    batches = [a_batch(guarded=g) for g in (False, True, True, False, True)]
    told = Guarding().take(batches)
    assert (told.alarms, told.guarded_records) == (2, 6)


def a_run(exits):
    return Table.of([a_batch(n=2, exits=exits, size=2, seq=s) for s in range(400)], 2)


PLANS = [PlanStatus.of(Plan.of(1, (0, 1), (1.0, 0.0)))]


def test_the_best_thresholds_in_hindsight_are_worth_all_of_themselves():
    told = second_half(a_run((0, 0)), CATALOG, PLANS, 0.01)
    assert told["share_of_hindsight"] == pytest.approx(1.0) and told["oracle_saving"] == pytest.approx(63.6 / 80)


def test_answers_that_never_leave_have_a_negative_share():
    assert second_half(a_run((-1, -1)), CATALOG, PLANS, 0.01)["share_of_hindsight"] < 0


def test_a_handful_of_records_is_not_judged():
    assert second_half(Table.of([a_batch()], 2), CATALOG, PLANS, 0.01) == {}
