"""An output as its best classes."""

import numpy as np
import pytest

from apparate_worker.errors import InvalidRequest
from apparate_worker.protocol.classification import classify, read_top

SCORES = np.array([[1, 5, 10, 4], [0.25, 0.25, -1, 0.5]], np.float32)


def test_the_best_classes_come_first_with_score_index_and_name():
    assert classify(SCORES, 2, ["plum", "pickle", "apple", "pear"]).tolist() == [
        [b"10.000000:2:apple", b"5.000000:1:pickle"],
        [b"0.500000:3:pear", b"0.250000:0:plum"],
    ]


def test_a_class_without_a_name_has_none():
    assert classify(SCORES, 2, ["plum", "pickle"]).tolist()[0] == [b"10.000000:2", b"5.000000:1:pickle"]


def test_more_classes_than_there_are_is_all_of_them():
    assert classify(SCORES, 99, []).shape == (2, 4)


def test_scores_that_are_no_numbers_come_last():
    found = classify(np.array([[np.nan, 1.0, -np.inf]], np.float32), 3, [])
    assert found.tolist() == [[b"1.000000:1", b"-inf:2", b"nan:0"]]


@pytest.mark.parametrize("given", [-1, "2", 1.0, True, None])
def test_a_number_of_classes_that_is_none_is_refused_by_name(given):
    with pytest.raises(InvalidRequest, match=f"output 'p': classification is {given!r}"):
        read_top("p", given)
