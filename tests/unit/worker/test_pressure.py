"""Stages under pressure are told once when they begin and once when they are over."""

from structlog.testing import capture_logs

from apparate_worker.pressure import HOLD_S, Pressure, Stage


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def looked(pressure, clock, seconds):
    """What is logged while the clock goes on."""
    with capture_logs() as lines:
        for _ in range(int(seconds)):
            clock.now += 1.0
            pressure.look()
    return [(line["event"], line["stage"]) for line in lines]


def test_at_ease_nothing_is_told():
    assert looked(Pressure(clock := Clock()), clock, 60) == []


def test_a_stage_that_is_taken_again_and_again_is_told_once_and_once_when_it_is_over():
    pressure = Pressure(clock := Clock())
    with capture_logs() as lines:
        for _ in range(100):
            pressure.note(Stage.SHED_LOW)
            clock.now += 0.5
            pressure.look()
    assert [(line["event"], line["log_level"]) for line in lines] == [("under pressure", "warning")]
    assert pressure.stages == (Stage.SHED_LOW,)
    assert looked(pressure, clock, 2 * HOLD_S) == [("pressure is over", "shed_low")]
    assert pressure.stages == ()
    assert pressure.entered[Stage.SHED_LOW] == 1


def test_waves_closer_than_the_hold_are_one_episode_and_others_are_two():
    pressure = Pressure(clock := Clock())
    for gap in (0.0, HOLD_S - 2, 3 * HOLD_S):
        looked(pressure, clock, gap)
        pressure.note(Stage.REFUSE)
        pressure.look()
    assert pressure.entered[Stage.REFUSE] == 2


def test_stages_come_and_go_on_their_own():
    pressure = Pressure(clock := Clock())
    pressure.note(Stage.SHORT_WAITS)
    pressure.note(Stage.REFUSE)
    assert pressure.stages == (Stage.SHORT_WAITS, Stage.REFUSE)
    clock.now += HOLD_S
    pressure.note(Stage.SHORT_WAITS)
    assert pressure.stages == (Stage.SHORT_WAITS,)
