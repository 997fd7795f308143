"""The controller's conditions say what is, why, and what to do."""

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError
from redis.exceptions import ConnectionError as RedisConnectionError

from apparate.contract.conditions import Reason
from apparate.contract.resource import Budget, Delivery, Observed
from apparate.contract.status import AccuracyLoss
from apparate.plan import Plan
from apparate.service.redis_client import failing
from apparate_controller.intake import Took
from apparate_controller.reporting import (
    StatusReporter,
    Traffic,
    Trouble,
    accuracy_met,
    delivery_of,
    feedback_flowing,
    observed_of,
    plan_delivered,
)
from apparate_controller.sources.heartbeats import WorkerState
from apparate_controller.sources.redis_stream import Backlog
from support.fakes import FakeSession

GOOD, OLD = WorkerState("a", revision=3), WorkerState("b", revision=2)
REFUSING = WorkerState("c", revision=2, refused="ramp 9 is not in the catalog", refused_revision=3)
DESCRIBED = {
    "observed": {"samples": 900, "loss": 0.00412345, "lossUpper": 0.009, "saving": 0.3123456, "exitRate": 0.5},
    "ramps": [{"ramp": 1, "exitRate": 0.5, "agreement": None, "savedMs": 1.23456}],
}


def losing(share, samples=1000):
    return Observed(accuracy_loss=AccuracyLoss(value=share, upper=min(1.0, share * 2), samples=samples))


@pytest.mark.parametrize(
    ("revision", "workers", "holds", "reason", "words"),
    [
        (0, [GOOD], None, Reason.NO_PLAN, "plain model"),
        (3, [], None, Reason.NO_WORKERS, "revision 3"),
        (3, [GOOD], True, Reason.DELIVERED, "1 of 1 workers run plan revision 3"),
        (3, [GOOD, OLD], False, Reason.DELIVERING, "1 of 2 workers"),
        (3, [GOOD, REFUSING], False, Reason.PLAN_REFUSED, "c refused it: ramp 9 is not in the catalog"),
        (4, [GOOD, REFUSING], False, Reason.DELIVERING, "0 of 2"),
    ],
)
def test_plan_delivered(revision, workers, holds, reason, words):
    said = plan_delivered(revision, workers)
    assert said[:2] == (holds, reason) and words in said[2]


def test_of_many_refusals_some_are_named():
    workers = [WorkerState(f"w{i}", revision=2, refused="no", refused_revision=3) for i in range(5)]
    assert plan_delivered(3, workers)[2].endswith("w2 refused it: no; and 2 more")


def test_delivery_counts_workers_that_run_exactly_this_revision():
    assert delivery_of(2, [GOOD, OLD]) == Delivery(revision=2, workers=2, updated_workers=1)


@pytest.mark.parametrize(
    ("workers", "traffic", "holds", "reason"),
    [
        ([GOOD], Traffic(current_record_s=1), True, Reason.FLOWING),
        ([], Traffic(), None, Reason.NO_WORKERS),
        ([GOOD], Traffic(), None, Reason.NO_TRAFFIC),
        ([GOOD], Traffic(current_record_s=61, request_s=61), None, Reason.NO_TRAFFIC),
        ([GOOD], Traffic(current_record_s=61, request_s=1), False, Reason.NO_FEEDBACK),
        ([GOOD], Traffic(current_record_s=1, failing_s=30), None, Reason.REDIS_UNREACHABLE),
        ([GOOD], Traffic(refused_s=1), False, Reason.FEEDBACK_REFUSED),
        ([], Traffic(current_record_s=61, refused_s=1), False, Reason.FEEDBACK_REFUSED),
        ([GOOD], Traffic(current_record_s=1, refused_s=1), True, Reason.FLOWING),
        ([GOOD], Traffic(refused_s=61), None, Reason.NO_TRAFFIC),
    ],
)
def test_feedback_flowing(workers, traffic, holds, reason):
    trouble = Trouble(failing(RedisConnectionError("Connection refused")), "catalog: batch 1 of w is of catalog x")
    assert feedback_flowing(3, workers, traffic, 60, trouble)[:2] == (holds, reason)


class Statuses:
    """Keeps what a reporter has the status say."""

    def __init__(self):
        self.conditions = {}

    def report(self, *, conditions=(), **_):
        self.conditions |= {one.type: one for one in conditions}

    def says(self, kind):
        return kind in self.conditions


def a_reporter(now):
    reporter = StatusReporter(Statuses(), Budget(), 60, lambda: 1, clock=lambda: now[0])
    session = FakeSession(Plan(3))
    return reporter, lambda: reporter.looked(session, [GOOD], Backlog())


def flowing(reporter):
    return reporter.sink.conditions["FeedbackFlowing"]


def test_feedback_that_is_all_refused_does_not_flow_and_what_was_wrong_is_said_once():
    now = [0.0]
    reporter, look = a_reporter(now)
    for second in range(90):
        now[0] = float(second)
        reporter.took(Took(batches=1, refused={"catalog": 1}, problem=f"batch {second} of a is of catalog x, not y"))
        look()
        said = flowing(reporter)
        assert (said.status, said.reason) == ("False", "FeedbackRefused")
        assert "catalog: batch 0 of a is of catalog x, not y" in said.message
        assert "apparate_feedback_refused_total" in said.message


def test_feedback_flows_again_after_the_first_batch_that_can_be_used():
    reporter, look = a_reporter([0.0])
    reporter.took(Took(batches=1, refused={"catalog": 1}, problem="batch 0 of a is of catalog x, not y"))
    reporter.took(Took(batches=1, records=4, revision=3))
    look()
    assert (flowing(reporter).status, "others are refused" in flowing(reporter).message) == ("True", True)


@pytest.mark.parametrize(
    ("error", "reason", "words"),
    [
        (RedisConnectionError("Error 111 connecting"), "RedisUnreachable", "Redis does not answer"),
        (AuthenticationError("invalid username-password pair"), "RedisRefused", "refuses the user or the password"),
        (NoPermissionError("this user has no permissions"), "RedisRefused", "give it the right"),
    ],
)
def test_a_redis_that_refuses_is_told_from_one_that_does_not_answer(error, reason, words):
    now = [0.0]
    reporter, _ = a_reporter(now)
    reporter.failed(error)
    now[0] = 11.0
    reporter.failed(error)
    said = flowing(reporter)
    assert (said.status, said.reason) == ("Unknown", reason) and words in said.message


@pytest.mark.parametrize(
    ("observed", "holds", "reason"),
    [
        (None, None, Reason.TOO_FEW_RECORDS),
        (losing(0.5, samples=10), None, Reason.TOO_FEW_RECORDS),
        (losing(0.01), True, Reason.WITHIN_BUDGET),
        (losing(0.02), False, Reason.ABOVE_BUDGET),
    ],
)
def test_accuracy_met(observed, holds, reason):
    assert accuracy_met(observed, Budget(accuracy_loss=0.01))[:2] == (holds, reason)


def test_what_is_observed_is_rounded_so_that_noise_is_not_written():
    observed = observed_of(DESCRIBED)
    assert (observed.accuracy_loss.value, observed.latency_saved_ratio, observed.ramps[0].saved_ms) == (
        0.0041,
        0.3123,
        1.2346,
    )


def test_before_the_first_record_nothing_is_observed():
    assert observed_of({"observed": {"samples": 0}}) is None
