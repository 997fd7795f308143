"""A plan is run only when it is newer, for this catalog, and within the budget."""

import pytest

from apparate.contract.resource import PlanStatus
from apparate.plan import MAX_REVISION, Plan
from apparate_worker.plans import REFUSALS, PlanKeeper, RefusedPlan, follow
from support.models import a_catalog


def document(plan):
    return PlanStatus.of(plan).model_dump_json(by_alias=True).encode()


def a_keeper(revision=3, overhead_ms=0.001):
    keeper = PlanKeeper(a_catalog(3, "tiny", overhead_ms), 0.02)
    keeper.take(document(Plan.of(revision, [0], [0.5], "tiny")))
    return keeper


def test_a_fresh_worker_runs_the_plain_model():
    assert PlanKeeper(a_catalog(), 0.02).plan == Plan(0)


def test_a_newer_plan_is_taken():
    assert a_keeper().take(document(Plan.of(4, [1, 2], [0.1, 0.9], "tiny"))).revision == 4


@pytest.mark.parametrize("written", [MAX_REVISION, 2**63 - 1])
def test_a_plan_of_the_highest_revision_there_is_gives_way_to_another(written):
    keeper = PlanKeeper(a_catalog(3, "tiny", 0.001), 0.02)
    keeper.take(document(Plan.of(3, [0], [0.5], "tiny")).replace(b'"revision":3', b'"revision":%d' % written))
    assert keeper.plan.revision == MAX_REVISION
    assert keeper.take(document(Plan.of(4, [1], [0.1], "tiny"))).revision == 4


def test_the_plan_in_force_may_come_again():
    assert a_keeper().take(document(Plan.of(3, [0], [0.5], "tiny"))) is None


def test_the_plain_model_needs_no_catalog():
    assert a_keeper().take(document(Plan(4))).revision == 4


@pytest.mark.parametrize(
    ("bad", "reason", "words"),
    [
        (document(Plan.of(2, [0], [0.1], "tiny")), "older", "2 is not above 3"),
        (document(Plan.of(3, [0], [0.1], "tiny")), "older", "3 is not above 3"),
        (document(Plan.of(MAX_REVISION, [0], [0.1], "tiny")), "older", "is more than 500000000000 above 3"),
        (document(Plan.of(4, [0], [0.1], "other")), "catalog", "'other'.*'tiny'"),
        (document(Plan.of(4, [3], [0.1], "tiny")), "ramp", "ramp 3 is not in the catalog, which has 3"),
        (b"", "malformed", "JSON"),
        (b"[]", "malformed", "usable"),
        (b'{"revision": "x"}', "malformed", "revision"),
        (b'{"revision": 4, "catalog": "tiny", "ramps": [{"ramp": 0, "threshold": 1.5}]}', "malformed", "threshold"),
        (
            b'{"revision": 4, "catalog": "tiny", "ramps": [{"ramp": 0, "threshold": 1}, {"ramp": 0, "threshold": 0}]}',
            "malformed",
            "twice",
        ),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused_with_its_reason_and_the_old_one_stays(bad, reason, words):
    keeper = a_keeper()
    with pytest.raises(RefusedPlan, match=words) as refused:
        keeper.take(bad)
    assert (refused.value.reason, keeper.plan.revision) == (reason, 3)
    assert reason in REFUSALS


def test_more_ramps_than_the_budget_allows_are_refused():
    keeper = a_keeper(overhead_ms=0.05)
    with pytest.raises(RefusedPlan, match=r"add 0\.0375 of a pass, allowed 0\.02") as refused:
        keeper.take(document(Plan.of(4, [0, 1, 2], [0.1] * 3, "tiny")))
    assert refused.value.reason == "budget"


class Source:
    def __init__(self, *documents):
        self.documents = documents

    async def plans(self):
        for one in self.documents:
            yield one


async def test_following_applies_what_is_good_and_counts_what_is_not():
    applied, refused = [], []
    source = Source(document(Plan.of(1, [0], [0.5], "tiny")), b"nonsense", document(Plan.of(2, [1], [0.5], "tiny")))
    await follow(source, PlanKeeper(a_catalog(), 0.02), lambda plan: applied.append(plan.revision), refused.append)
    assert (applied, refused) == ([1, 2], ["malformed"])
