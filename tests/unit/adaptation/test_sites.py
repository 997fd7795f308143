import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apparate.adaptation.sites import cut_vertices


def reaches(edges, source, sink, without):
    seen, stack = {source}, [source]
    while stack:
        node = stack.pop()
        for tail, head in edges:
            if tail == node and head != without and head not in seen:
                seen.add(head)
                stack.append(head)
    return sink in seen


@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.floats(0.1, 0.7))
def test_a_cut_is_a_node_without_which_the_sink_is_out_of_reach(seed, nodes, density):
    rng = np.random.default_rng(seed)
    edges = [(i, j) for i in range(nodes) for j in range(i + 1, nodes) if rng.random() < density]
    rng.shuffle(edges)
    edges = [(int(a), int(b)) for a, b in edges]
    if not reaches(edges, 0, nodes - 1, None):
        with pytest.raises(ValueError, match="no path from 0"):
            cut_vertices(edges, 0, nodes - 1)
        return
    expected = [v for v in range(1, nodes - 1) if not reaches(edges, 0, nodes - 1, v)]
    assert cut_vertices(edges, 0, nodes - 1) == expected


def test_a_branch_that_ends_nowhere_does_not_hide_a_cut():
    assert cut_vertices([("in", "a"), ("a", "aux"), ("a", "b"), ("b", "out")], "in", "out") == ["a", "b"]


def test_a_constant_that_joins_does_not_hide_a_cut():
    assert cut_vertices([("in", "a"), ("weight", "b"), ("a", "b"), ("b", "out")], "in", "out") == ["a", "b"]


@pytest.mark.parametrize("back", [("b", "a"), ("a", "in"), ("a", "a")])
def test_a_cycle_is_refused(back):
    with pytest.raises(ValueError, match="cycle"):
        cut_vertices([("in", "a"), ("a", "b"), ("b", "out"), back], "in", "out")


def test_a_chain_of_100000_nodes_is_no_trouble():
    n = 100_000
    assert len(cut_vertices([(i, i + 1) for i in range(n)], 0, n)) == n - 1
