from datetime import UTC, datetime, timedelta

import pytest

from apparate.contract.conditions import ConditionType, Reason, condition, rfc3339, with_condition

NOW = datetime(2026, 11, 30, 10, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def ready(holds, reason=Reason.READY, now=NOW):
    return condition(ConditionType.READY, holds, reason, now=now)


def test_a_condition_is_added_beside_the_others():
    met = condition(ConditionType.ACCURACY_MET, None, Reason.TOO_FEW_RECORDS, now=NOW)
    assert [c.type for c in with_condition([met], ready(True), NOW)] == ["AccuracyMet", "Ready"]


def test_the_transition_time_stays_while_the_status_does():
    changed = ready(True, Reason.WORKERS_READY, LATER)
    (kept,) = with_condition([ready(True)], changed, LATER)
    assert (kept.reason, kept.last_transition_time) == ("WorkersReady", "2026-11-30T10:00:00Z")


def test_the_transition_time_moves_with_the_status():
    (flipped,) = with_condition([ready(True)], ready(False, Reason.CRASH_LOOP, LATER), LATER)
    assert (flipped.status, flipped.last_transition_time) == ("False", "2026-11-30T10:05:00Z")


def test_unknown_is_a_status():
    assert ready(None).status == "Unknown"


def test_a_moment_without_a_time_zone_is_refused():
    with pytest.raises(ValueError, match="no time zone"):
        rfc3339(datetime(2026, 11, 30))


@pytest.mark.parametrize("kind", ConditionType)
def test_every_condition_has_one_writer_and_one_sentence(kind):
    assert kind.writer in ("apparate-operator", "apparate-controller")
    assert kind.meaning.endswith(".")


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_one_that_the_api_server_takes(reason):
    assert ready(False, reason).reason == reason.value


def test_a_reason_that_kubernetes_would_refuse_is_refused_here():
    with pytest.raises(ValueError, match="reason"):
        ready(False, "two words")
