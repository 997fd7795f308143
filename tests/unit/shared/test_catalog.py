import numpy as np
import pytest

from apparate.catalog import InvalidCatalog, RampCatalog


def a_catalog(**changes):
    data = {
        "batch_sizes": [1, 4],
        "T": [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]],
        "o": [[0.04, 0.04, 0.04], [0.04, 0.04, 0.04]],
        "full": [4.0, 8.0],
    }
    return RampCatalog.from_json(data | changes)


def test_a_catalog_survives_json():
    catalog = a_catalog(layers=["a", "b", "c"], note="kept")
    again = RampCatalog.from_json(catalog.to_json())
    assert again.to_json() == catalog.to_json()
    assert again.extra["note"] == "kept"


def test_a_batch_is_charged_at_the_next_profiled_size():
    assert a_catalog().rows(np.array([1, 2, 4, 9])).tolist() == [0, 1, 1, 1]


def test_exits_pay_every_ramp_on_the_way():
    assert a_catalog().exit_ms([0, 2])[0] == pytest.approx([1.04, 3.08, 4.08])


def test_with_no_ramp_active_everyone_takes_the_plain_pass():
    assert a_catalog().exit_ms([]).tolist() == [[4.0], [8.0]]


def test_the_ramp_budget_holds_at_every_batch_size():
    catalog = a_catalog(o=[[0.04, 0.04, 0.04], [0.2, 0.04, 0.04]])
    assert catalog.fits([1, 2], 0.02)
    assert not catalog.fits([0], 0.02)  # 1 % at batch size 1, 2.5 % at 4
    assert catalog.max_active_ramps(0.02) == 2


def test_ramps_that_answer_later_than_the_model_are_not_feasible():
    catalog = a_catalog(o=[[0.1, 0.1, 1.5], [0.1, 0.1, 0.1]])
    assert catalog.feasible() == (0, 1)
    assert catalog.latest_useful() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_sizes": []}, r"batch sizes are \[\]"),
        ({"batch_sizes": [4, 1]}, r"batch sizes are \[4, 1\], must be positive and rising"),
        ({"batch_sizes": ["x", 1]}, "must be a list of whole numbers"),
        ({"batch_sizes": [float("inf"), 4]}, "must be a list of whole numbers"),
        ({"T": [[1.0, 2.0, 3.0]]}, r"T has shape \[1, 3\], expected \[2, R\]"),
        ({"T": [[1.0, 1.0, 3.0], [2.0, 4.0, 6.0]]}, "T does not rise at batch size 1: ramp 0"),
        ({"T": [[1.0, 2.0, 5.0], [2.0, 4.0, 6.0]]}, "above the time of the whole pass"),
        ({"T": [[1.0, 2.0], [1.0]]}, "reach_ms is not a table of numbers"),
        ({"T": [[1.0, 2.0, 10**400], [2.0, 4.0, 6.0]]}, "reach_ms is not a table of numbers"),
        ({"o": [[0.1, 0.1], [0.1, 0.1]]}, r"o has shape \[2, 2\], T has \[2, 3\]"),
        ({"o": [[0.1, 0.1, -1.0], [0.1, 0.1, 0.1]]}, "negative or not finite"),
        ({"full": [4.0]}, r"full has shape \[1\], expected \[2\]"),
        ({"full": [float("nan"), 8.0]}, "negative or not finite"),
        ({"full": [0.0, 8.0]}, "must be positive"),
        ({"layers": ["a"]}, "layers has 1 names, T has 3 ramps"),
        ({"layers": None}, "layers is None, must be a list of names"),
        ({"layers": 3}, "layers is 3, must be a list of names"),
        ({"layers": "abc"}, "layers is 'abc', must be a list of names"),
        ({"digest": None}, "digest is None, must be text"),
    ],
)
def test_what_cannot_be_true_is_refused_by_name(changes, message):
    with pytest.raises(InvalidCatalog, match=message):
        a_catalog(**changes)


def test_missing_fields_are_named():
    with pytest.raises(InvalidCatalog, match="catalog has no o, full"):
        RampCatalog.from_json({"batch_sizes": [1], "T": [[1.0]]})


def test_a_list_is_not_a_catalog():
    with pytest.raises(InvalidCatalog, match="this is a list"):
        RampCatalog.from_json([])


def test_the_digest_follows_the_content():
    assert a_catalog().digest == a_catalog().digest != a_catalog(full=[4.5, 8.0]).digest
