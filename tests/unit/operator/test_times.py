"""Jobs are waited for by the operator's own clock, whatever that of the control plane says."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from apparate_operator.kinds import JOB
from apparate_operator.lifecycle import Step, next_step
from apparate_operator.observed import observe
from apparate_operator.times import Times
from support.models_on_kubernetes import ENVIRONMENT, NOW, World, a_model, applied

HOUR = timedelta(hours=1)
SKEWS = pytest.mark.parametrize("skew", [-HOUR, timedelta(0), HOUR], ids=["behind", "right", "ahead"])


class Looking:
    """An operator's looks at a model whose Job the control plane dates by a clock that is off."""

    def __init__(self, skew: timedelta) -> None:
        self.model, self.world, self.times, self.skew = a_model(), World(), Times(), skew
        self.world.do(self.model)

    def look(self, now: datetime) -> Step:
        """What is next at `now` by the operator's clock."""
        observed = self.times.own(self.model.metadata.uid, observe(self.world.store.of(self.model.metadata.uid)), now)
        return next_step(self.model, observed, ENVIRONMENT, now)

    def fails(self, now: datetime) -> None:
        """The Job fails, dated by the control plane."""
        self.world.job_fails(self.model, at=(now - self.skew).strftime("%Y-%m-%dT%H:%M:%SZ"))


@SKEWS
def test_a_failed_preparation_is_tried_again_after_its_pause_whatever_clocks_say(skew: timedelta):
    looking = Looking(skew)
    looking.look(NOW)
    looking.fails(NOW)
    assert looking.look(NOW).again_s == 30
    assert not applied(looking.look(NOW + timedelta(seconds=29)), JOB)
    assert applied(looking.look(NOW + timedelta(seconds=31)), JOB)


@SKEWS
def test_a_job_without_a_pod_is_looked_into_after_its_time_whatever_clocks_say(skew: timedelta):
    looking = Looking(skew)
    looking.look(NOW)
    started = (NOW - skew).strftime("%Y-%m-%dT%H:%M:%SZ")
    looking.world.put(JOB, looking.world.newest(looking.model, JOB) | {"status": {"startTime": started}})
    assert looking.look(NOW).again_s == 10
    assert looking.look(NOW + timedelta(seconds=4)).again_s == 6


def test_a_new_operator_goes_by_what_is_told_unless_that_is_yet_to_come():
    late, early = Looking(timedelta(0)), Looking(-HOUR)
    for looking in (late, early):
        looking.fails(NOW)
    assert applied(late.look(NOW + HOUR), JOB)  # it failed while nobody looked: its pause is over
    assert early.look(NOW).again_s == 30


def test_nothing_is_kept_of_a_model_that_is_gone():
    looking = Looking(timedelta(0))
    looking.fails(NOW)
    looking.look(NOW)
    looking.times.forget(looking.model.metadata.uid)
    assert looking.times._known == {}
