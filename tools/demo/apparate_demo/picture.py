"""The picture of a run: latencies, agreement over time, thresholds and active ramps over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apparate.contract.resource import PlanStatus
from apparate_demo.results import ROLLING, Answers, agrees, rolling_agreement

PLAIN, EXITS, LIMIT, GRID = "#8a8f98", "#0b6e99", "#c0392b", "#e6e8eb"
DPI = 130
SHOWN = 97  # percentile at which the latency axis ends: a few slow answers would squeeze the rest


@dataclass(frozen=True, eq=False)
class Story:
    """What the picture shows."""

    title: str
    subtitle: str
    plain: Answers
    exits: Answers
    budget: float
    plans: Sequence[PlanStatus]
    layers: Sequence[str]
    seconds: float
    """Traffic seconds with exits, for the time axis."""


def draw(story: Story, path: Path) -> None:
    """Write the picture as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style: dict[Any, Any] = {
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titleweight": "bold",
    }
    style |= {"axes.titlesize": 10.5, "axes.titlelocation": "left", "font.family": "DejaVu Sans"}
    with plt.rc_context(style):
        figure = plt.figure(figsize=(11.0, 6.2), dpi=DPI, layout="constrained")
        halves = figure.add_gridspec(1, 2, width_ratios=(1, 1.25))
        rows = halves[0, 1].subgridspec(2, 1, height_ratios=(1, 1.15))
        figure.suptitle(f"{story.title}\n", fontsize=13, fontweight="bold", x=0.01, ha="left")
        figure.text(0.01, 0.93, story.subtitle, fontsize=9.5, color="#555555")
        _latencies(figure.add_subplot(halves[0, 0]), story)
        over = figure.add_subplot(rows[0])
        _agreement(over, story)
        _thresholds(figure.add_subplot(rows[1], sharex=over), story)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)


def _latencies(axes: Any, story: Story) -> None:
    top = 0.0
    for answers, name, colour in ((story.plain, "plain", PLAIN), (story.exits, "early exits", EXITS)):
        values = np.sort(answers.latency[~np.isnan(answers.latency)])
        if not len(values):
            continue
        share = np.arange(1, len(values) + 1) / len(values)
        p50 = float(np.percentile(values, 50))
        axes.plot(values, share * 100, color=colour, lw=2.2, label=f"{name}: median {p50:.1f} ms")
        axes.plot([p50], [50], "o", color=colour, ms=6)
        top = max(top, float(np.percentile(values, SHOWN)))
    axes.axhline(50, color=GRID, lw=1, zorder=0)
    axes.set(xlim=(0, top * 1.02 or 1), ylim=(0, 101), xlabel="response time seen by the client, ms")
    axes.set(ylabel="answers, %", title="Answers come sooner")
    if top:
        axes.legend(loc="lower right", frameon=False)


def _time(story: Story, count: int) -> Any:
    return np.linspace(0, story.seconds, max(count, 1))


def _agreement(axes: Any, story: Story) -> None:
    same = agrees(story.plain, story.exits)
    rolled = rolling_agreement(same)
    if len(rolled):
        width = len(same) - len(rolled) + 1
        axes.plot(_time(story, len(same))[width - 1 :], rolled * 100, color=EXITS, lw=1.6)
        low = min(float(rolled.min()) * 100, 100 * (1 - story.budget))
        axes.set_ylim(low - 0.25 * (100.2 - low), 100.2)
    axes.axhline(100 * (1 - story.budget), color=LIMIT, lw=1.2, ls="--")
    axes.annotate(
        f"budget: {100 * (1 - story.budget):g} %",
        (0.995, 100 * (1 - story.budget)),
        xycoords=("axes fraction", "data"),
        xytext=(0, -3),
        textcoords="offset points",
        ha="right",
        va="top",
        color=LIMIT,
    )
    total = 100 * float(same.mean()) if len(same) else 0.0
    axes.set(title=f"Same answer as the plain model: {total:.2f} %")
    axes.set(xlim=(0, story.seconds), ylabel=f"of {ROLLING:,} answers, %")
    axes.tick_params(labelbottom=False)


def _thresholds(axes: Any, story: Story) -> None:
    import matplotlib

    by_revision = {plan.revision: {r.ramp: r.threshold for r in plan.ramps} for plan in story.plans}
    revisions, x = story.exits.revision, _time(story, len(story.exits))
    used = sorted({ramp for revision in np.unique(revisions) for ramp in by_revision.get(int(revision), {})})
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.85, max(len(used), 1)))
    lookup, place = np.unique(revisions, return_inverse=True)
    for ramp, colour in zip(used, colours, strict=False):
        each = np.array([by_revision.get(int(r), {}).get(ramp, np.nan) for r in lookup])
        name = story.layers[ramp] if ramp < len(story.layers) else f"ramp {ramp}"
        axes.plot(x, each[place], color=colour, lw=1.6, label=f"{ramp}: {name}", drawstyle="steps-post")
    axes.set(xlabel="seconds of traffic with exits", ylabel="threshold", title="Active ramps and their thresholds")
    low, high = axes.get_ylim()
    axes.set_ylim(0 if low > 0 else low, high + 0.3 * (high - low))  # room for the legend
    if used:
        axes.legend(loc="upper left", frameon=False, fontsize=8, ncols=2)
