"""The response cache: the model's own answers by content, bounded, and never an early one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apparate.plan import Plan
from apparate_worker.cache import ENTRY_BYTES, Cache, Remember, content_key
from support.eventually import eventually_async
from support.infer import ask, client
from support.infer import scores as scores_of
from support.models import a_prepared_model, a_worker, filled, items, only

SCORES = np.zeros((1, 4), np.float32)
ENTRY = SCORES.nbytes + ENTRY_BYTES


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_an_answer_is_found_until_it_is_too_old_and_both_are_counted():
    clock = Clock()
    cache = Cache(10 * ENTRY, 5.0, clock)
    assert cache.find(b"a") is None
    cache.keep(b"a", SCORES)
    clock.now += 4.9
    assert cache.find(b"a") is SCORES
    clock.now += 0.1
    assert cache.find(b"a") is None
    assert (cache.hits, cache.misses, cache.bytes) == (1, 2, 0)


def test_within_its_bytes_the_least_recently_used_goes_first():
    cache = Cache(2 * ENTRY, 5.0)
    cache.keep(b"a", SCORES)
    cache.keep(b"b", SCORES)
    cache.find(b"a")
    cache.keep(b"c", SCORES)
    assert [cache.find(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    assert cache.bytes == 2 * ENTRY


def test_what_is_larger_than_the_cache_is_not_kept():
    cache = Cache(ENTRY - 1, 5.0)
    cache.keep(b"a", SCORES)
    assert (cache.find(b"a"), cache.bytes) == (None, 0)


def test_a_request_is_kept_when_the_last_of_its_items_has_reached_the_end():
    cache = Cache(1000, 5.0)
    remember = Remember(cache, b"a", 2)
    remember(1, np.array([3, 4], np.float32))
    assert cache.find(b"a") is None
    remember(0, np.array([1, 2], np.float32))
    assert cache.find(b"a").tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.array([[1, 2, 3, 5]], np.float32)},
        {"x": np.array([[1, 2], [3, 4]], np.float32)},
        {"x": np.array([[1, 2, 3, 4]], np.int32)},
        {"y": np.array([[1, 2, 3, 4]], np.float32)},
    ],
    ids=["value", "shape", "datatype", "name"],
)
def test_inputs_that_differ_in_anything_have_different_keys(other):
    one = {"x": np.array([[1, 2, 3, 4]], np.float32)}
    assert content_key(one) == content_key({"x": one["x"].copy()})
    assert content_key(one) != content_key(other)


def test_a_slice_that_is_not_contiguous_has_the_key_of_its_values():
    wide = np.arange(16, dtype=np.float32).reshape(4, 4)
    assert content_key({"x": wide[:, ::2]}) == content_key({"x": wide[:, ::2].copy()})


CACHED = {"serving": {"responseCache": {"ttlSeconds": 60}, "maxBatch": 4}}


async def test_the_same_input_gets_the_models_own_answer_again_without_a_pass():
    prepared, x = a_prepared_model(), items(3)
    async with a_worker(prepared, **CACHED) as (worker, http, _), client(http) as c:
        first = await ask(c, x)
        await eventually_async(lambda: only(worker).cache.bytes)
        again = await ask(c, x)
        assert scores_of(again).tolist() == scores_of(first).tolist()
        assert (again["parameters"]["cached"], "cached" in first["parameters"]) == (True, False)
        await eventually_async(lambda: only(worker).serving.served == 3)  # a pass is counted behind its answers
        text = (await c.get("/metrics")).text
        assert 'apparate_cache_hits_total{model="tiny",namespace="default"} 1.0' in text


async def test_who_left_early_is_answered_again_with_what_the_model_itself_said():
    prepared, x = a_prepared_model(sharp=3.0), items(1)
    plan = Plan.of(1, [0], [1.0], "tiny")
    async with a_worker(prepared, plan=plan, **CACHED) as (worker, http, _), client(http) as c:
        filled(worker)
        first = await ask(c, x)
        await eventually_async(lambda: only(worker).cache.bytes)
        again = await ask(c, x)
        assert (first["parameters"]["exit_ramp"], again["parameters"]["exit_ramp"]) == (0, -1)
        own = prepared.model({"x": torch.from_numpy(x)}).numpy()
        np.testing.assert_allclose(scores_of(again), own, rtol=1e-4, atol=1e-5)


async def test_without_the_spec_nothing_is_kept():
    async with a_worker() as (worker, http, _), client(http) as c:
        await ask(c, items(1))
        assert "cached" not in (await ask(c, items(1)))["parameters"]
        assert only(worker).cache is None
