"""Dashboards as the chart ships them, and what a Prometheus answers to their queries."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apparate_cluster.prometheus import Server

POINTS = 180


@dataclass(frozen=True)
class Span:
    """From when to when, in seconds since 1970."""

    start: float
    end: float

    @property
    def step_s(self) -> float:
        """Between two points."""
        return max(1.0, (self.end - self.start) / POINTS)


@dataclass(frozen=True)
class Series:
    """One line: its name in the legend, times and values."""

    name: str
    labels: Mapping[str, str]
    times: tuple[float, ...]
    values: tuple[float, ...]


@dataclass
class Drawn:
    """A panel with what was answered, by query."""

    panel: dict[str, Any]
    answers: list[list[Series]]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to see."""
        return not any(math.isfinite(v) for found in self.answers for one in found for v in one.values)


@dataclass
class Page:
    """A whole dashboard. marks: moments that are marked, with their colour."""

    title: str
    panels: list[Drawn] = field(default_factory=list)
    headings: list[dict[str, Any]] = field(default_factory=list)
    marks: list[tuple[float, str]] = field(default_factory=list)


def read(path: Path) -> dict[str, Any]:
    """A dashboard's JSON."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def ask(server: Server, board: Mapping[str, Any], span: Span, choices: Mapping[str, str]) -> Page:
    """The page of a dashboard. choices: values of its variables, as regular expressions; and rate_interval."""
    page = Page(board["title"])
    for panel in board["panels"]:
        if panel["type"] == "row":
            page.headings.append(panel)
            continue
        instant = panel["type"] in ("table", "trend")
        answers = [
            _now(server, fill(t["expr"], choices), t, span)
            if instant
            else _course(server, fill(t["expr"], choices), t, span)
            for t in panel["targets"]
        ]
        page.panels.append(Drawn(panel, answers))
    for mark in board["annotations"]["list"]:
        for one in _course(server, fill(mark["expr"], choices), {}, span):
            begins = [t for i, t in enumerate(one.times) if not i or t - one.times[i - 1] > 2 * span.step_s]
            page.marks += [(t, mark["iconColor"]) for t in begins]
    return page


def fill(expr: str, choices: Mapping[str, str]) -> str:
    """An expression with values in the place of Grafana's variables."""
    for name, value in {"__rate_interval": choices["rate_interval"], **choices}.items():
        expr = expr.replace(f"${name}", value)
    if left := re.search(r"\$\w+", expr):
        raise ValueError(f"{left[0]} has no value in {expr}")
    return expr


def _course(server: Server, expr: str, target: Mapping[str, Any], span: Span) -> list[Series]:
    answer = server.ask("/api/v1/query_range", query=expr, start=span.start, end=span.end, step=span.step_s)
    return [
        Series(
            name(target.get("legendFormat", ""), one["metric"]),
            one["metric"],
            tuple(float(t) for t, _ in one["values"]),
            tuple(float(v) for _, v in one["values"]),
        )
        for one in answer["data"]["result"]
    ]


def _now(server: Server, expr: str, target: Mapping[str, Any], span: Span) -> list[Series]:
    return [
        Series(
            name(target.get("legendFormat", ""), one["metric"]), one["metric"], (span.end,), (float(one["value"][1]),)
        )
        for one in server.query(expr, time=span.end)
    ]


def name(legend: str, labels: Mapping[str, str]) -> str:
    """How Grafana calls a series."""
    if legend in ("", "__auto"):
        return ", ".join(f"{k}={v}" for k, v in labels.items() if k != "__name__")
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), legend)
