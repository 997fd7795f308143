from __future__ import annotations

from redis.exceptions import ConnectionError as RedisConnectionError
from yaml import safe_load

from apparate.adaptation.policy import Decision, Observed, Reason
from apparate.contract.metrics import CONTROLLER
from apparate.contract.resource import EarlyExitModel
from apparate.plan import Plan
from apparate.service.telemetry import Sparsely, Telemetry
from apparate_controller.intake import Took
from apparate_controller.observe import ModelObserver
from apparate_controller.sources.heartbeats import WorkerState
from apparate_controller.sources.redis_stream import Backlog
from support.control import CATALOG, DOCUMENT
from support.fakes import FakeSession


def an_observer() -> tuple[ModelObserver, Telemetry]:
    telemetry = Telemetry(CONTROLLER)
    return ModelObserver(telemetry, EarlyExitModel.model_validate(safe_load(DOCUMENT % "m")), CATALOG), telemetry


def test_one_line_in_ten_seconds_tells_how_many_were_held_back():
    now = 0.0
    sparsely = Sparsely(10, clock=lambda: now)
    said = [sparsely() for _ in range(5)]
    now = 10.0
    assert (said, sparsely()) == ([0, None, None, None, None], 4)


def test_a_lasting_failure_fills_no_log(caplog):
    observer, telemetry = an_observer()
    for _ in range(1000):
        observer.failed(RedisConnectionError("refused"))
    assert b'apparate_controller_errors_total{kind="redis",model="m",namespace="default"} 1000.0' in telemetry.render()


def test_everything_that_was_told_is_in_the_exposition():
    observer, telemetry = an_observer()
    plan = Plan.of(3, [1], [0.5], CATALOG.digest)
    seen = Observed(samples=10, loss=0.01, loss_upper=0.02, saving=0.3, exit_rate=0.5)
    observer.took(Took(batches=2, records=8, lost=1, duplicates=1, refused={"catalog": 1}, decision_s=0.001))
    observer.decided(Decision(Reason.THRESHOLDS_TUNED, "", plan, seen))
    session = FakeSession(plan)
    session.observed = seen
    observer.looked(session, [WorkerState("a", 3), WorkerState("b", 2)], Backlog(5, 2, 9))
    observer.recovered()
    text = telemetry.render().decode()
    of = 'model="m",namespace="default"'
    for line in (
        f"apparate_feedback_records_total{{{of}}} 8.0",
        f"apparate_feedback_lost_total{{{of}}} 1.0",
        f'apparate_decisions_total{{{of},reason="ThresholdsTuned"}} 1.0',
        f"apparate_published_plan_revision{{{of}}} 3.0",
        f'apparate_ramp_threshold_ratio{{{of},ramp="1"}} 0.5',
        f'apparate_ramp_threshold_ratio{{{of},ramp="2"}} 0.0',
        f"apparate_updated_workers{{{of}}} 1.0",
        f"apparate_feedback_lag_entries{{{of}}} 5.0",
        f"apparate_observed_saving_ratio{{{of}}} 0.3",
        f"apparate_model_adapting{{{of}}} 1.0",
    ):
        assert line in text


def test_every_reason_is_counted_from_0_so_that_the_first_decision_of_each_is_seen_to_rise():
    _, telemetry = an_observer()
    text = telemetry.render().decode()
    assert [one for one in Reason if f'reason="{one}"}} 0.0' not in text] == []


def test_what_people_ask_for_is_logged_though_it_makes_no_plan(caplog, monkeypatch):
    observer, _ = an_observer()
    told = []
    monkeypatch.setattr(observer, "_log", Lines(told))
    observer.decided(Decision(Reason.PAUSED_BY_HAND, "plan revision 3 stays, as alice asked"))
    observer.decided(Decision(Reason.UNCHANGED, "nothing better"))
    assert told == [{"reason": "PausedByHand", "message": "plan revision 3 stays, as alice asked"}]


class Lines:
    """A log that keeps what it is told."""

    def __init__(self, told: list) -> None:
        self._told = told

    def info(self, event: str, **told: object) -> None:
        self._told.append(told)
