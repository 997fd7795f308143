"""Panels as data, and Grafana's JSON of them, made with Grafana's own types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries, trend
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shapes
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
RATE = "[$__rate_interval]"
NAMESPACE = 'namespace=~"$namespace"'
MODEL = f'{NAMESPACE}, model=~"$model"'
HEIGHTS = {"stat": 4, "table": 8, "timeseries": 8, "cdf": 8}
EXAMPLES = "apparate_release_seconds_bucket"  # has trace ids, where requests are traced


@dataclass(frozen=True)
class Query:
    """One expression. legend: how its series are called, {{label}} for a label's value; of a table the column."""

    expr: str
    legend: str = ""
    unit: str = ""
    """Of a table's column."""


@dataclass(frozen=True)
class Panel:
    """What a panel shows, in which unit, and in a sentence what it means.

    limits: lines to compare with, warning and then alarm. cdf: shares by `le`.
    """

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: Literal["timeseries", "stat", "table", "cdf"] = "timeseries"
    width: int = 8
    stacked: bool = False
    limits: tuple[float, ...] = ()
    most: float | None = None
    least: float | None = 0.0
    logarithmic: bool = False
    decimals: int | None = None


@dataclass(frozen=True)
class Row:
    """Panels below a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice at the top: values of a label of a metric."""

    name: str
    query: str
    several: bool = True


@dataclass(frozen=True)
class Marks:
    """Moments that are marked on every panel."""

    name: str
    expr: str
    text: str
    color: str


@dataclass(frozen=True)
class Board:
    """One dashboard."""

    name: str
    """Of its file."""
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()
    marks: tuple[Marks, ...] = field(default=())

    @property
    def panels(self) -> Iterator[Panel]:
        """All of them."""
        for row in self.rows:
            yield from row.panels


def to_json(board: Board) -> str:
    """The dashboard as Grafana reads it. It has no uid of its own: Grafana gives it one, and links go by tag."""
    made = (
        dashboard.Dashboard(f"Apparate / {board.title}")
        .description(board.description)
        .tags(["apparate"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("Apparate")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags(["apparate"])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        made = made.with_variable(_variable(variable))
    number = 0
    for row in board.rows:
        made = made.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            number += 1
            made = made.with_panel(_panel(panel).id(number))
    plain = json.loads(json.dumps(made.build(), cls=JSONEncoder))
    plain["annotations"] = {"list": [_marks(one) for one in board.marks]}
    for row_number, one in enumerate(one for one in plain["panels"] if one["type"] == "row"):
        one["id"] = 1000 + row_number  # the library gives all rows the same one
    return json.dumps(plain, indent=1, sort_keys=True) + "\n"


def _variable(one: Variable) -> Any:
    every = models.VariableOption(text="All", value="$__all", selected=True)
    made = (
        dashboard.QueryVariable(one.name)
        .label(one.name.capitalize())
        .datasource(DATASOURCE)
        .query(one.query)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    return made.multi(True).include_all(True).current(every) if one.several else made


def _marks(one: Marks) -> dict[str, Any]:
    """As Prometheus's data source wants it; the library's type has no expression."""
    return {
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "enable": True,
        "expr": one.expr,
        "iconColor": one.color,
        "name": one.name,
        "titleFormat": one.name,
        "textFormat": one.text,
        "step": "15s",
    }


def _panel(one: Panel) -> Any:
    made = {"timeseries": _lines, "stat": _stat, "table": _table, "cdf": _cdf}[one.kind](one)
    made = made.title(one.title).description(one.description).datasource(DATASOURCE)
    made = made.span(one.width).height(HEIGHTS[one.kind])
    if one.kind != "table":
        made = made.unit(one.unit)
    if one.most is not None:
        made = made.max(one.most)
    if one.decimals is not None:
        made = made.decimals(one.decimals)
    for ref, query in zip("ABCDEFGHIJ", one.queries, strict=False):
        made = made.with_target(_target(query, ref, one.kind))
    return made


def _target(query: Query, ref: str, kind: str) -> Any:
    made = prometheus.Dataquery().expr(query.expr).ref_id(ref).datasource(DATASOURCE)
    if kind in ("table", "cdf"):
        return made.instant().format(PromQueryFormat.TABLE)
    made = made.range().legend_format(query.legend or "__auto")
    return made.exemplar(True) if EXAMPLES in query.expr and kind == "timeseries" else made


def _steps(limits: tuple[float, ...]) -> Any:
    colors = ("yellow", "red") if len(limits) > 1 else ("red",)
    steps = [models.Threshold(value=limit, color=color) for limit, color in zip(limits, colors, strict=False)]
    made = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
    return made.steps([models.Threshold(value=None, color="green"), *steps])


def _lines(one: Panel) -> Any:
    made = (
        timeseries.Panel()
        .line_width(1)
        .fill_opacity(40 if one.stacked else 5)
        .show_points(shapes.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(shapes.LegendDisplayMode.LIST)
            .show_legend(True)
            .placement(shapes.LegendPlacement.BOTTOM)
        )
        .tooltip(common.VizTooltipOptions().mode(shapes.TooltipDisplayMode.MULTI).sort(shapes.SortOrder.DESCENDING))
    )
    if one.logarithmic:
        made = made.scale_distribution(common.ScaleDistributionConfig().type(shapes.ScaleDistribution.LOG).log(10))
    elif one.least is not None:
        made = made.min(one.least)
    if one.stacked:
        made = made.stacking(common.StackingConfig().mode(shapes.StackingMode.NORMAL))
    if one.limits:
        made = made.thresholds(_steps(one.limits)).thresholds_style(
            common.GraphThresholdsStyleConfig().mode(shapes.GraphTresholdsStyleMode.LINE)
        )
    return made


def _stat(one: Panel) -> Any:
    reduce = common.ReduceDataOptions().calcs(["lastNotNull"])
    made = stat.Panel().reduce_options(reduce).graph_mode(shapes.BigValueGraphMode.AREA)
    return made.thresholds(_steps(one.limits)) if one.limits else made


def _table(one: Panel) -> Any:
    names = {f"Value #{ref}": query.legend for ref, query in zip("ABCDEFGHIJ", one.queries, strict=False)}
    if len(one.queries) == 1:
        names = {"Value": one.queries[0].legend}
    made = table.Panel()
    if len(one.queries) > 1:
        made = made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    organize = {"excludeByName": {"Time": True}, "renameByName": names}
    made = made.with_transformation(models.DataTransformerConfig(id_val="organize", options=organize))
    for query in one.queries:
        unit = models.DynamicConfigValue(id_val="unit", value=query.unit or one.unit)
        made = made.override_by_name(query.legend, [unit])
    return made


def _cdf(one: Panel) -> Any:
    steps = (
        ("convertFieldType", {"conversions": [{"targetField": "le", "destinationType": "number"}]}),
        ("joinByField", {"byField": "le", "mode": "outer"}),
        ("sortBy", {"sort": [{"field": "le"}]}),
        (
            "organize",
            {
                "excludeByName": {"Time": True, "Time 1": True, "Time 2": True},
                "renameByName": {f"Value #{ref}": query.legend for ref, query in zip("AB", one.queries, strict=True)},
            },
        ),
    )
    made = trend.Panel().x_field("le").show_points(shapes.VisibilityMode.ALWAYS)
    for name, options in steps:
        made = made.with_transformation(models.DataTransformerConfig(id_val=name, options=options))
    return made
