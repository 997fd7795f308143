from __future__ import annotations

import pytest

from apparate_controller.progress import Progress, stream_order


def test_progress_survives_the_hash():
    progress = Progress()
    progress.advance("12-3")
    progress.totals.records = 7
    progress.positions.observe("w", 1, 0)
    again = Progress.from_fields(progress.to_fields())
    assert again.to_fields() == progress.to_fields()


def test_an_entry_that_comes_late_does_not_move_the_position_back():
    progress = Progress()
    for entry in ("10-0", "9-5"):
        progress.advance(entry)
    assert progress.last_id == "10-0"


def test_stream_ids_are_ordered_as_numbers():
    assert sorted(["10-0", "9-0", "9-10", "9-9"], key=stream_order) == ["9-0", "9-9", "9-10", "10-0"]


@pytest.mark.parametrize("stored", [{"records": "many"}, {"last_id": "x"}, {"worker:w": "{"}, {"worker:w": "[1]"}])
def test_a_damaged_hash_is_refused_by_name(stored):
    with pytest.raises(ValueError, match=r"records|'x'|worker w"):
        Progress.from_fields(stored)
