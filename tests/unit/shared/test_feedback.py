import numpy as np
import pytest

from apparate.feedback import FINAL, FeedbackBatch, FeedbackWindow, InvalidFeedback, Records


def a_batch(n=2, ramps=(0, 1), labels=None, exits=None, **changes):
    shape = (n, len(ramps))
    fields = {
        "model": "default/m/1",
        "worker": "w",
        "epoch": 1,
        "seq": 0,
        "revision": 1,
        "padded_size": n,
        "ramps": ramps,
        "errors": np.full(shape, 0.5, np.float32),
        "labels": np.zeros(shape, np.int32) if labels is None else np.array(labels, np.int32),
        "final_labels": np.zeros(n, np.int32),
        "exits": np.full(n, FINAL, np.int32) if exits is None else np.array(exits, np.int32),
    }
    return FeedbackBatch(**(fields | changes))


def test_a_wrong_early_answer_counts_and_a_wrong_ramp_that_was_passed_does_not():
    batch = a_batch(3, labels=[[1, 0], [1, 0], [0, 1]], exits=[0, 1, FINAL])
    assert batch.released_wrong.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"errors": np.zeros((3, 2), np.float32)}, r"errors has shape \[3, 2\], expected \[2, 2\]"),
        ({"ramps": (1, 0)}, r"ramps are \[1, 0\], must be rising"),
        ({"ramps": (-1, 0)}, "must be rising"),
        ({"padded_size": 1}, "padded size is 1, the batch has 2"),
        ({"shadow": (True,)}, "shadow has 1 flags, there are 2 ramps"),
        ({"released_ms": np.zeros(1, np.float32)}, "released_ms has 1 values for 2 requests"),
    ],
)
def test_parts_that_do_not_agree_are_refused_by_name(changes, message):
    with pytest.raises(InvalidFeedback, match=message):
        a_batch(**changes)


def test_a_window_keeps_the_newest_records_in_order():
    window = FeedbackWindow(4, 1)
    for value in range(6):
        window.add(a_batch(1, ramps=(0,), errors=np.full((1, 1), value / 10, np.float32)))
    assert window.over([0]).errors[:, 0].tolist() == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert (len(window), window.added) == (4, 6)


def test_a_batch_larger_than_the_window_leaves_its_end():
    window = FeedbackWindow(3, 1)
    window.add(a_batch(5, ramps=(0,), errors=np.arange(5, dtype=np.float32)[:, None] / 10))
    assert window.over([0]).errors[:, 0].tolist() == pytest.approx([0.2, 0.3, 0.4])


def test_a_record_serves_every_set_whose_ramps_reported():
    window = FeedbackWindow(10, 3)
    window.add(a_batch(2, ramps=(0, 1)))
    window.add(a_batch(3, ramps=(0, 1, 2), shadow=(False, False, True), labels=np.zeros((3, 3))))
    window.add(a_batch(1, ramps=(), labels=np.zeros((1, 0))))
    assert [len(window.over(ramps)) for ramps in ([0, 1], [2], [0, 2], [])] == [5, 3, 3, 6]


def test_overwritten_cells_do_not_linger():
    window = FeedbackWindow(2, 2)
    window.add(a_batch(2, ramps=(0, 1)))
    window.add(a_batch(2, ramps=(1,), labels=np.zeros((2, 1))))
    assert len(window.over([0])) == 0


def test_columns_come_in_the_order_asked_for():
    window = FeedbackWindow(2, 2)
    window.add(a_batch(1, errors=np.array([[0.1, 0.2]], np.float32)))
    assert window.over([1, 0]).errors.tolist() == [[pytest.approx(0.2), pytest.approx(0.1)]]


def test_a_ramp_beyond_the_catalog_is_refused():
    with pytest.raises(InvalidFeedback, match="ramp 2 is not in a catalog of 2 ramps"):
        FeedbackWindow(4, 2).add(a_batch(1, ramps=(2,), labels=np.zeros((1, 1))))


def test_a_recording_tells_labels_and_shadows():
    window = FeedbackWindow(4, 2)
    window.add(a_batch(2, shadow=(False, True), labels=[[3, 4], [5, 6]], padded_size=4))
    table = window.recording([0, 1])
    assert table["top1"].tolist() == [[3, 4], [5, 6]]
    assert table["shadow"].tolist() == [[False, True], [False, True]]
    assert table["batch"].tolist() == [4, 4]


def test_released_answers_are_remembered():
    window = FeedbackWindow(8, 2)
    window.add(a_batch(3, labels=[[1, 0], [0, 0], [0, 0]], exits=[0, 1, FINAL]))
    exited, wrong = window.released()
    assert exited.tolist() == [True, True, False]
    assert wrong.tolist() == [True, False, False]


def test_records_whose_parts_do_not_agree_are_refused():
    with pytest.raises(InvalidFeedback, match="do not agree"):
        Records(np.zeros((2, 1), np.float32), np.zeros((2, 2), bool), np.ones(2, int))
