"""Dashboards and rules ask for what there is, and what there is can be seen."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.models import dashboard as shapes
from grafana_foundation_sdk.models import units

from apparate.contract.metrics import METRICS
from support.promql import SUFFIXES, selected, wrong_with

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "charts/apparate/files/dashboards").glob("*.json"))
VARIABLES = {"$__rate_interval": "1m", "$namespace": ".*", "$model": ".*"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}


def generator() -> ModuleType:
    sys.path.insert(0, str(ROOT / "charts" / "generate"))
    try:
        return importlib.import_module("dashboards")
    finally:
        sys.path.pop(0)


BOARDS = {path.stem: json.loads(path.read_text()) for path in FILES}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def filled(expr: str) -> str:
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def of_dashboards() -> Iterator[tuple[str, str]]:
    """(where it is, expression)."""
    for name, board in BOARDS.items():
        for panel in panels(board):
            for target in panel["targets"]:
                yield f"{name}: {panel['title']}", filled(target["expr"])
        for mark in board["annotations"]["list"]:
            yield f"{name}: {mark['name']}", filled(mark["expr"])


def of_rules() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "charts/apparate/files/alerts").glob("*.yaml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield str(rule.get("alert") or rule["record"]), str(rule["expr"])


def test_the_files_are_what_the_panels_say() -> None:
    rendered = generator().render()
    assert {path.relative_to(ROOT).as_posix() for path in FILES} == set(rendered)
    assert [name for name, text in rendered.items() if (ROOT / name).read_text() != text] == []


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_types_read_a_dashboard_and_write_it_again(name: str) -> None:
    board = BOARDS[name]
    again = shapes.Dashboard.from_json(board)
    assert again.title == board["title"] and again.panels is not None
    assert [type(one).__name__ for one in again.panels] == [
        "RowPanel" if one["type"] == "row" else "Panel" for one in board["panels"]
    ]


@pytest.mark.parametrize(("where", "expr"), [*of_dashboards(), *of_rules()], ids=lambda one: str(one)[:60])
def test_an_expression_asks_for_what_there_is(where: str, expr: str) -> None:
    assert wrong_with(expr) == []


@pytest.mark.parametrize(
    ("expr", "wrong"),
    [
        ("apparate_surprises", "there is no apparate_surprises"),
        ('apparate_ready{ramp="1"}', "apparate_ready has no label ramp"),
        ("apparate_exits_total", "apparate_exits_total is a counter, and is given to nothing"),
        ("rate(apparate_ready[1m])", "apparate_ready is a gauge, and is given to rate"),
        ("sum by (reason)(apparate_ready)", "nothing in 'sum by (reason)(apparate_ready)' has the label reason"),
    ],
)
def test_what_is_wrong_with_an_expression_is_found(expr: str, wrong: str) -> None:
    assert wrong_with(expr) == [wrong]


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_says_what_it_shows_and_in_which_unit(name: str) -> None:
    there = {value for value in vars(units).values() if isinstance(value, str)}
    for panel in panels(BOARDS[name]):
        assert panel["description"].endswith("."), panel["title"]
        asked = [panel["fieldConfig"]["defaults"].get("unit")] if panel["type"] != "table" else []
        asked += [o["properties"][0]["value"] for o in panel["fieldConfig"]["overrides"]]
        assert asked and set(asked) <= there, panel["title"]


@pytest.mark.parametrize("name", BOARDS)
def test_a_dashboard_works_in_any_grafana(name: str) -> None:
    board = BOARDS[name]
    assert "__inputs" not in board and "uid" not in board  # a uid of its own would be somebody else's, too
    assert board["templating"]["list"][0]["type"] == "datasource"
    asked = [board["annotations"]["list"], panels(board), board["templating"]["list"][1:]]
    asked += [panel["targets"] for panel in panels(board)]
    assert [one for several in asked for one in several if one["datasource"] != DATASOURCE] == []
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


def test_every_metric_is_on_a_dashboard_or_marked_internal() -> None:
    seen = {one.name for _, expr in of_dashboards() for one in selected(expr)}
    hidden = [m.name for m in METRICS if not any(m.name + suffix in seen for suffix in SUFFIXES[m.kind])]
    assert sorted(hidden) == sorted(generator().INTERNAL)
