"""Pages as pictures: panels where the dashboard has them, drawn plainly."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from PIL import Image

from apparate_dashboards.pages import Drawn, Page, Series, Span

matplotlib.use("Agg")
COLUMNS = 24
INCHES_WIDE, INCHES_OF_ROW, DPI = 15.0, 0.34, 62
MARGIN = 0.03
LEGEND_MOST = 7
ROWS_MOST = 8
CHARACTERS_OF_COLUMN = 7  # of the dashboard, of which it has 24
COLORS_KEPT = 96
COLORS = plt.colormaps["tab10"].colors  # type: ignore[attr-defined]


def draw(page: Page, span: Span, path: Path) -> None:
    """Write the picture of a page."""
    bottom = max(one["gridPos"]["y"] + one["gridPos"]["h"] for one in (p.panel for p in page.panels))
    figure = plt.figure(figsize=(INCHES_WIDE, (bottom + 2) * INCHES_OF_ROW), dpi=DPI)
    unit = 1 / (bottom + 2)
    figure.text(0.01, 1 - unit, page.title, fontsize=16, weight="bold", va="center")
    for heading in page.headings:
        y = 1 - (heading["gridPos"]["y"] + 2.6) * unit
        figure.text(0.01, y, heading["title"], fontsize=12, color="#555555", weight="bold", va="center")
    for one in page.panels:
        at = one.panel["gridPos"]
        left, width = at["x"] / COLUMNS, at["w"] / COLUMNS
        top, height = 1 - (at["y"] + 2) * unit, at["h"] * unit
        box = (left + MARGIN, top - height + 1.6 * unit, width - MARGIN - 0.012, height - 2.7 * unit)
        axes = figure.add_axes(box)
        _panel(axes, one, page, span)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    with Image.open(path) as drawn:
        drawn.convert("RGB").quantize(COLORS_KEPT).save(path, optimize=True)  # a third of the size


def _panel(axes: Axes, one: Drawn, page: Page, span: Span) -> None:
    axes.set_title(one.panel["title"], fontsize=9, loc="left", weight="bold", pad=3)
    if one.empty:
        axes.text(0.5, 0.5, "no data", ha="center", va="center", fontsize=11, color="#999999", transform=axes.transAxes)
        axes.set_axis_off()
        axes.set_title(one.panel["title"], fontsize=9, loc="left", weight="bold", pad=3)
        return
    kinds: dict[str, Callable[[], None]] = {
        "stat": lambda: _stat(axes, one),
        "table": lambda: _table(axes, one),
        "trend": lambda: _trend(axes, one),
    }
    kinds.get(one.panel["type"], lambda: _lines(axes, one, page, span))()


def _unit(one: Drawn) -> str:
    return str(one.panel["fieldConfig"]["defaults"].get("unit", "none"))


def _limits(one: Drawn) -> list[tuple[float, str]]:
    steps = (one.panel["fieldConfig"]["defaults"].get("thresholds") or {}).get("steps", ())
    return [(step["value"], step["color"]) for step in steps if step["value"] is not None]


def _series(one: Drawn) -> list[Series]:
    return sorted((s for found in one.answers for s in found), key=lambda s: (len(s.name), s.name))


def _lines(axes: Axes, one: Drawn, page: Page, span: Span) -> None:
    series = _series(one)
    custom = one.panel["fieldConfig"]["defaults"].get("custom") or {}
    if (custom.get("stacking") or {}).get("mode") == "normal":
        times = sorted({t for s in series for t in s.times})
        rows = [[dict(zip(s.times, s.values, strict=True)).get(t, 0.0) for t in times] for s in series]
        rows = [[v if math.isfinite(v) else 0.0 for v in row] for row in rows]
        axes.stackplot([t - span.end for t in times], rows, labels=[s.name for s in series], alpha=0.75)
    else:
        for i, s in enumerate(series):
            axes.plot([t - span.end for t in s.times], s.values, label=s.name, lw=1.3, color=COLORS[i % len(COLORS)])
    for value, color in _limits(one):
        axes.axhline(value, color=color, lw=0.9, ls="--")
    for moment, color in page.marks:
        axes.axvline(moment - span.end, color=color, lw=0.5, alpha=0.5)
    axes.set_xlim(span.start - span.end, 0)
    _scale(axes, one, custom)
    axes.yaxis.set_major_formatter(lambda v, _: text_of(v, _unit(one)))
    axes.xaxis.set_major_formatter(lambda v, _: f"{v:.0f} s")
    axes.tick_params(labelsize=7, length=2)
    axes.grid(alpha=0.25, lw=0.5)
    handles, names = axes.get_legend_handles_labels()
    shown = dict(zip(names[:LEGEND_MOST], handles, strict=False))
    axes.legend(shown.values(), shown.keys(), fontsize=6.5, loc="upper left", framealpha=0.7, borderpad=0.3)


def _scale(axes: Axes, one: Drawn, custom: dict[str, Any]) -> None:
    """The axis up, as the dashboard has it."""
    if (custom.get("scaleDistribution") or {}).get("type") == "log":
        axes.set_yscale("log")
        return
    defaults = one.panel["fieldConfig"]["defaults"]
    low, high = axes.get_ylim()
    if not any(v for found in one.answers for s in found for v in s.values):
        low, high = 0.0, 1.0
    axes.set_ylim(defaults.get("min", low), min(high, defaults.get("max", high) * 1.02))


def _stat(axes: Axes, one: Drawn) -> None:
    series = next(s for s in _series(one) if any(map(math.isfinite, s.values)))
    finite = [(t, v) for t, v in zip(series.times, series.values, strict=True) if math.isfinite(v)]
    value = finite[-1][1]
    color = "#2a7a2a"
    for limit, name in _limits(one):
        color = {"yellow": "#c79500"}.get(name, name) if value >= limit else color
    axes.fill_between([t for t, _ in finite], [v for _, v in finite], alpha=0.15, color=color)
    axes.set_axis_off()
    axes.text(
        0.5,
        0.5,
        text_of(value, _unit(one)),
        ha="center",
        va="center",
        fontsize=17,
        weight="bold",
        color=color,
        transform=axes.transAxes,
    )


def _table(axes: Axes, one: Drawn) -> None:
    axes.set_axis_off()
    columns = [override["matcher"]["options"] for override in one.panel["fieldConfig"]["overrides"]]
    units = [o["properties"][0]["value"] for o in one.panel["fieldConfig"]["overrides"]]
    rows: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
    for column, unit, found in zip(columns, units, one.answers, strict=True):
        for s in found:
            key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "__name__"))
            rows.setdefault(key, {})[column] = text_of(s.values[0], unit)
    labels = sorted({k for key in rows for k, _ in key})
    cells = [[dict(key).get(k, "") for k in labels] + [row.get(c, "") for c in columns] for key, row in rows.items()]
    fits = CHARACTERS_OF_COLUMN * one.panel["gridPos"]["w"] // (len(labels) + len(columns))
    cells = [[cell[:fits] for cell in row] for row in sorted(cells)][:ROWS_MOST]
    table = axes.table(cells, colLabels=[*labels, *columns], loc="upper left", cellLoc="left", edges="horizontal")
    table.auto_set_font_size(False)
    table.set_fontsize(8)
    table.scale(1, 1.15)


def _trend(axes: Axes, one: Drawn) -> None:
    names = _renamed(one.panel)
    for i, found in enumerate(one.answers):
        points = sorted((float(s.labels["le"]), s.values[0]) for s in found)
        axes.plot([x for x, _ in points], [y for _, y in points], marker=".", lw=1.3, label=names[i])
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda v, _: text_of(v, "s"))
    axes.yaxis.set_major_formatter(lambda v, _: text_of(v, _unit(one)))
    axes.set_ylim(0, 1.02)
    axes.tick_params(labelsize=7, length=2)
    axes.grid(alpha=0.25, lw=0.5)
    axes.legend(fontsize=7)


def _renamed(panel: dict[str, Any]) -> list[str]:
    names = next(t["options"]["renameByName"] for t in panel["transformations"] if t["id"] == "organize")
    return [names[f"Value #{target['refId']}"] for target in panel["targets"]]


def text_of(value: float, unit: str) -> str:
    """A value as people read it."""
    if not math.isfinite(value):
        return "-"
    if unit == "percentunit":
        return f"{value:.1%}" if abs(value) < 0.1 or 0.9 < value < 1 else f"{value:.0%}"
    if unit == "bool_yes_no":
        return "yes" if value else "no"
    if unit == "s":
        return _seconds(value)
    if unit == "bytes":
        return next(
            (
                f"{value / size:.3g} {name}"
                for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
                if abs(value) >= size
            ),
            f"{value:.0f} B",
        )
    return f"{value:.3g}{ {'reqps': '/s', 'ops': '/s'}.get(unit, '') }"


def _seconds(value: float) -> str:
    if value and abs(value) < 1e-3:
        return f"{value * 1e6:.0f} µs"
    if value and abs(value) < 1:
        return f"{value * 1e3:.3g} ms"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(value) >= 2 * size:
            return f"{value / size:.3g} {name}"
    return f"{value:.3g} s"
