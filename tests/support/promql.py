"""What an expression of PromQL asks for, and what of it cannot be: unknown names and labels, wrong kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import promql_parser

from apparate.contract.metrics import METRICS

SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("_sum", "_count"),
}
OF_TARGETS = {"job", "instance", "pod"}
"""Labels that Prometheus gives to everything it scrapes."""
OTHERS: dict[str, tuple[str, set[str]]] = {
    "ALERTS": ("gauge", {"alertname", "alertstate", "namespace", "model", "severity"}),
    "process_cpu_seconds_total": ("counter", set()),
    "process_resident_memory_bytes": ("gauge", set()),
    **{f"apparate:late_answers:ratio_rate{w}": ("gauge", {"namespace", "model"}) for w in ("5m", "30m", "1h", "6h")},
}
"""Names that are not ours: kind, labels."""
OVER_COUNTERS = {"rate", "increase", "irate"}


@dataclass(frozen=True)
class Selected:
    """One selector: its metric, the labels it compares, and the function that its range is given to."""

    name: str
    labels: frozenset[str]
    function: str


def known() -> dict[str, tuple[str, set[str]]]:
    """Every name that an expression may use: kind of its values, labels."""
    found = dict(OTHERS)
    for metric in METRICS:
        for suffix in SUFFIXES[metric.kind]:
            more = {"le"} if suffix == "_bucket" else set()
            grows = metric.kind != "gauge"
            found[metric.name + suffix] = ("counter" if grows else "gauge", {*metric.labels, *more})
    return found


def selected(expr: str) -> list[Selected]:
    """Every selector of an expression. Raises what the parser raises."""
    return list(_walk(promql_parser.parse(expr), ""))


def _walk(node: Any, function: str) -> Iterator[Selected]:
    name = type(node).__name__
    if name == "MatrixSelector":
        yield from _walk(node.vector_selector, function)
    elif name == "VectorSelector":
        yield Selected(node.name, frozenset(m.name for m in node.matchers.matchers), function)
    elif name == "Call":
        for one in node.args:
            yield from _walk(one, node.func.name)
    else:
        for part in ("lhs", "rhs", "expr"):
            if (child := getattr(node, part, None)) is not None:
                yield from _walk(child, "")


def grouped(expr: str) -> Iterator[tuple[set[str], list[Selected]]]:
    """(labels it groups by, selectors in it) of every aggregation."""
    yield from _grouped(promql_parser.parse(expr))


def _grouped(node: Any) -> Iterator[tuple[set[str], list[Selected]]]:
    if type(node).__name__ == "AggregateExpr" and node.modifier is not None:
        yield set(node.modifier.labels), list(_walk(node.expr, ""))
    for part in ("lhs", "rhs", "expr", "args"):
        child = getattr(node, part, None) or ()
        for one in child if isinstance(child, list) else [child] if child != () else ():
            yield from _grouped(one)


def wrong_with(expr: str) -> list[str]:
    """What cannot be in an expression, in sentences."""
    names, found = known(), []
    for one in selected(expr):
        if one.name not in names:
            found.append(f"there is no {one.name}")
            continue
        kind, labels = names[one.name]
        if extra := one.labels - labels - OF_TARGETS:
            found.append(f"{one.name} has no label {', '.join(sorted(extra))}")
        if (kind == "counter") != (one.function in OVER_COUNTERS):
            found.append(f"{one.name} is a {kind}, and is given to {one.function or 'nothing'}")
    for by, selectors in grouped(expr):
        if extra := by - OF_TARGETS - _labels(selectors, names):
            found.append(f"nothing in {expr!r} has the label {', '.join(sorted(extra))}")
    return found


def _labels(selectors: Sequence[Selected], names: dict[str, tuple[str, set[str]]]) -> set[str]:
    return set().union(*(names[one.name][1] for one in selectors if one.name in names))
