"""The picture of a run in a cluster: response times, agreement, exits and plans, and what was done to the cluster."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Line = dict[str, Any]
COLOURS = {"http": "#0b6e99", "grpc": "#d9822b"}
LIMIT, MARK, NAME, EARLY = "#c0392b", "#f1e9d8", "#6b5b34", "#3a7d44"
DPI = 130


@dataclass(frozen=True)
class Story:
    """The lines of a run by their kind, times in seconds from its first answer."""

    lines: Sequence[Line]

    @classmethod
    def load(cls, path: Path) -> Story:
        """From a file with a line of JSON each. Raises ValueError when it tells of no answer."""
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
        if not any(one["kind"] == "second" for one in lines):
            raise ValueError(f"{path} has no line of the load generator (kind second)")
        return cls(lines)

    def of(self, kind: str, **fields: str) -> list[Line]:
        """Lines of one kind whose fields have these values."""
        found = [one for one in self.lines if one["kind"] == kind]
        return [one for one in found if all(one.get(name) == value for name, value in fields.items())]

    @property
    def begin(self) -> float:
        """When the first second began."""
        return float(min(one["at"] for one in self.of("second")))

    @property
    def end(self) -> float:
        """When the last one did."""
        return float(max(one["at"] for one in self.of("second")))


def draw(story: Story, path: Path, *, title: str, model: str, budget: float = 0.01) -> None:
    """Write the picture as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style: dict[Any, Any] = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    style |= {"axes.titleweight": "bold", "axes.titlesize": 10, "axes.titlelocation": "left"}
    with plt.rc_context(style):
        figure, rows = plt.subplots(4, 1, figsize=(12, 9.5), dpi=DPI, sharex=True, layout="constrained")
        figure.suptitle(title, fontsize=12.5, fontweight="bold", x=0.01, ha="left")
        _times(rows[0], story)
        _agreement(rows[1], story, budget)
        _early(rows[2], story)
        _plans(rows[3], story, model)
        for axes in rows:
            _marks(axes, story, named=axes is rows[0])
        rows[-1].set(xlabel=f"minutes of traffic\n\n{_names(story)}", xlim=(0, (story.end - story.begin) / 60))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)


def _marks(axes: Any, story: Story, *, named: bool) -> None:
    for number, one in enumerate(story.of("mark"), 1):
        begin, end = ((one[name] - story.begin) / 60 for name in ("begin", "end"))
        axes.axvspan(begin, end, color=MARK, lw=0, zorder=0)
        if named:
            where = {"xy": ((begin + end) / 2, 1.02), "xycoords": ("data", "axes fraction"), "ha": "center"}
            axes.annotate(str(number), **where, fontsize=8, color=NAME, annotation_clip=False)


def _names(story: Story) -> str:
    """What the numbers of the marks mean, in lines of about the picture's width."""
    items = [f"{i} {one['what']}".replace(" ", "\N{NO-BREAK SPACE}") for i, one in enumerate(story.of("mark"), 1)]
    return textwrap.fill("   ".join(items), 150)


def _times(axes: Any, story: Story) -> None:
    for protocol, colour in COLOURS.items():
        rows = [one for one in story.of("second", protocol=protocol) if one["p50_ms"] is not None]
        if rows:
            x = np.array([(one["at"] - story.begin) / 60 for one in rows])
            y = np.array([one["p50_ms"] for one in rows])
            axes.plot(x, _smooth(y), color=colour, lw=1.2, label=f"{protocol}, median of each second")
            axes.set_ylim(0, max(axes.get_ylim()[1] if axes.lines[1:] else 0, float(np.percentile(y, 97)) * 1.3))
    lost = [(one["sent"] - story.begin) / 60 for one in story.of("failure")]
    if lost:
        text = f"requests without an answer: {len(lost)}"
        axes.plot(lost, [0] * len(lost), "x", color=LIMIT, ms=6, clip_on=False, label=text)
    axes.set(ylabel="ms")
    axes.set_title("Response time seen by the client", pad=16)
    axes.legend(loc="upper right", frameon=False, ncols=3, fontsize=8)


def _smooth(values: Any, width: int = 5) -> Any:
    """Running median: one slow second is noise of the machine."""
    padded = np.pad(values, width // 2, mode="edge")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)


def _agreement(axes: Any, story: Story, budget: float) -> None:
    rows = story.of("window")
    x = [(one["end"] - story.begin) / 60 for one in rows]
    axes.plot(x, [100 * one["agreement"] for one in rows], ".", color=EARLY, ms=4)
    axes.axhline(100 * (1 - budget), color=LIMIT, lw=1.2, ls="--")
    axes.annotate(
        f"budget {100 * (1 - budget):g} %",
        (0.998, 100 * (1 - budget)),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color=LIMIT,
    )
    axes.set(ylabel="%", title="Same answer as the plain model, each 1,000 answers")
    axes.set_ylim(min([98.7, *(100 * one["agreement"] - 0.1 for one in rows)]), 100.05)


def _early(axes: Any, story: Story) -> None:
    rows = story.of("window")
    x = [(one["end"] - story.begin) / 60 for one in rows]
    axes.plot(x, [100 * one["early"] for one in rows], color=EARLY, lw=1.4)
    axes.set(ylabel="%", ylim=(0, 100), title="Answers that left early")


def _plans(axes: Any, story: Story, model: str) -> None:
    import matplotlib

    plans = [one for one in story.of("plan", model=model) if story.begin - 60 <= one["at"] <= story.end]
    layers = sorted({layer for plan in plans for layer in plan["ramps"]}, key=_place)
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, max(len(layers), 1)))
    times = [max(0.0, (plan["at"] - story.begin) / 60) for plan in plans]
    for layer, colour in zip(layers, colours, strict=False):
        y = [plan["ramps"].get(layer, np.nan) for plan in plans]
        end = (story.end - story.begin) / 60
        axes.plot([*times, end], [*y, *y[-1:]], color=colour, lw=1.5, drawstyle="steps-post", label=layer)
    last = plans[-1]["revision"] if plans else 0
    axes.set(ylabel="threshold", title=f"Active ramps and their thresholds: plan revision {last} at the end")
    axes.set_ylim(bottom=0)
    if layers:
        axes.legend(loc="upper left", frameon=False, fontsize=7, ncols=6)


def _place(layer: str) -> tuple[int, str]:
    numbers = [int(part) for part in layer.split(".") if part.isdigit()]
    return (numbers[0] if numbers else 0, layer)
