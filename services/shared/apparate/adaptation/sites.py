"""Where a ramp may sit: nodes of the dataflow graph that every path from the input to the output goes through.

Such a node carries all that was computed so far, so that a ramp there sees everything, and an exit needs no second
live tensor. Inside a residual block nothing qualifies; the activation after it does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def cut_vertices(edges: Iterable[tuple[Node, Node]], source: Node, sink: Node) -> list[Node]:
    """Nodes other than source and sink without which the sink is out of reach, in topological order.

    O(V + E). Branches that end without reaching the sink do not hide a cut. Raises ValueError when the sink cannot be
    reached, or the graph between source and sink has a cycle.
    """
    successors: dict[Node, list[Node]] = {}
    predecessors: dict[Node, list[Node]] = {}
    for tail, head in edges:
        successors.setdefault(tail, []).append(head)
        predecessors.setdefault(head, []).append(tail)
    ahead: set[Node] = _reachable(source, successors)
    behind: set[Node] = _reachable(sink, predecessors)
    between = ahead & behind
    if source not in between or sink not in between:
        raise ValueError(f"no path from {source!r} to {sink!r}")
    order = _topological(source, successors, between)
    position = {node: i for i, node in enumerate(order)}
    cuts: list[Node] = []
    furthest = 0
    for i, node in enumerate(order):
        # Every edge from before this node ends at it or before, so no path goes around it.
        if furthest <= i and node != source and node != sink:
            cuts.append(node)
        furthest = max([furthest, *(position[n] for n in successors.get(node, ()) if n in between)])
    return cuts


def _reachable(start: Node, neighbours: Mapping[Node, Sequence[Node]]) -> set[Node]:
    seen: set[Node] = {start}
    queue: deque[Node] = deque([start])
    while queue:
        for node in neighbours.get(queue.popleft(), ()):
            if node not in seen:
                seen.add(node)
                queue.append(node)
    return seen


def _topological(source: Node, successors: Mapping[Node, Sequence[Node]], nodes: set[Node]) -> list[Node]:
    waiting = dict.fromkeys(nodes, 0)
    for node in nodes:
        for head in successors.get(node, ()):
            if head in nodes:
                waiting[head] += 1
    if waiting[source]:
        raise ValueError(f"the graph has a cycle through {source!r}")
    order: list[Node] = []
    ready: deque[Node] = deque([source])
    while ready:
        node = ready.popleft()
        order.append(node)
        for head in successors.get(node, ()):
            if head in nodes:
                waiting[head] -= 1
                if not waiting[head]:
                    ready.append(head)
    if len(order) < len(nodes):
        stuck = next(node for node in nodes if waiting[node])
        raise ValueError(f"the graph has a cycle through {stuck!r}")
    return order
