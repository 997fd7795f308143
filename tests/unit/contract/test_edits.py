"""Differences of documents, field by field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate.contract.edits import Edit, edits, shown, with_edit

BEFORE = {"model": {"source": "w", "inputs": [{"name": "x", "shape": [3, 8]}]}, "classes": ["a", "b"]}


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (BEFORE, []),
        ({**BEFORE, "classes": ["a"]}, [Edit("classes", ["a", "b"], ["a"])]),
        (
            {**BEFORE, "model": {"source": "v", "inputs": [{"name": "x", "shape": [3, 9]}]}},
            [Edit("model.source", "w", "v"), Edit("model.inputs.0.shape", [3, 8], [3, 9])],
        ),
        (
            {**BEFORE, "model": {**BEFORE["model"], "inputs": []}},
            [Edit("model.inputs", [{"name": "x", "shape": [3, 8]}], [])],
        ),
        ({"model": BEFORE["model"]}, [Edit("classes", ["a", "b"], None)]),
        ({**BEFORE, "gpu": {"count": 1}}, [Edit("gpu", None, {"count": 1})]),
    ],
)
def test_the_deepest_fields_that_differ_are_named(after: dict[str, Any], expected: list[Edit]) -> None:
    assert list(edits(BEFORE, after)) == expected


PLAIN = st.recursive(
    st.integers(0, 3) | st.sampled_from(["", "a"]),
    lambda inner: (
        st.dictionaries(st.sampled_from("pqr"), inner, max_size=3)
        | st.lists(st.dictionaries(st.sampled_from("pq"), inner, min_size=1, max_size=2), min_size=1, max_size=2)
    ),
    max_leaves=8,
)
DATA = st.dictionaries(st.sampled_from("xyz"), PLAIN, max_size=3)


@given(DATA, DATA)
def test_all_edits_one_after_the_other_lead_from_one_document_to_the_other(before: Any, after: Any) -> None:
    data = before
    for edit in edits(before, after):
        data = with_edit(data, edit)
    assert data == after


def test_a_long_value_is_cut_and_an_empty_one_is_nothing() -> None:
    assert [shown(one) for one in (None, "", [], 0, False)] == ["nothing", "nothing", "nothing", "0", "False"]
    assert len(shown("x" * 100)) == 60
