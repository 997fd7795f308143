"""A worker in the mode compact, asked over HTTP, with its feedback in a real Redis."""

import asyncio

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from apparate.contract.stream import FIELD, feedback_key
from apparate.contract.wire import decode_feedback
from apparate.feedback import FINAL
from apparate.plan import Plan
from support.eventually import eventually_async
from support.infer import ask, client
from support.models import a_prepared_model, a_worker, agreeing, filled, only

pytestmark = pytest.mark.redis
MODEL = "default/tiny/local"
SPEC = {
    "serving": {"mode": "compact", "compact": {"fullShare": 0.2}, "maxBatch": 4},
    "budget": {"accuracyLoss": 0.5},
    "adaptation": {"shadowShare": 1.0},
}


def entries(url):
    with redis.Redis.from_url(url, socket_timeout=5) as r:
        return [decode_feedback(fields[FIELD]) for _, fields in r.xrange(feedback_key(MODEL))]


async def metrics(c):
    families = text_string_to_metric_families((await c.get("/metrics")).text)
    return {
        sample.name: sample.value for family in families for sample in family.samples if "ramp" not in sample.labels
    }


async def test_checked_batches_are_feedback_that_says_how_likely_it_was_and_nobody_is_made_to_leave(redis_server):
    ran = []
    prepared = a_prepared_model(sharp=3.0, hook=lambda k, value: ran.append((k, len(value))))
    plan = Plan.of(5, [0, 2], [0.2, 0.5], "tiny")
    x = agreeing(prepared, plan, 300)
    async with a_worker(prepared, redis_url=redis_server, plan=plan, **SPEC) as (worker, http, _), client(http) as c:
        only(worker).guard.admit(only(worker).serving.schedule)
        filled(worker)
        ran.clear()
        answers = await asyncio.gather(*(ask(c, row[None]) for row in x))
        seen = await eventually_async(lambda: _all_counted(c))
        checked = seen["apparate_checked_answers_total"]
        found = await eventually_async(lambda: (got := entries(redis_server)) and sum(map(len, got)) == checked and got)
    assert [one.seq for one in found] == list(range(len(found)))
    assert {one.share for one in found} <= {0.2, 1.0}
    assert 0 < checked < 300  # of some 80 batches none, or all, are drawn once in 10 million times
    assert seen["apparate_forced_exits_total"] == 0
    assert seen["apparate_dropped_rows_total"] > 0
    final = sum(answer["parameters"]["exit_ramp"] == FINAL for answer in answers)
    assert 0 < final < 300
    assert final <= sum(rows for k, rows in ran if k == 3) < 300


async def _all_counted(c):
    found = await metrics(c)
    return found if found["apparate_batch_requests_sum"] == 300 else None
