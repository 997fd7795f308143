"""What the figures say: tables for people, the goals beside them, and the picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from environments import PEERS, version
from measuring import UNITS
from servers import OURS

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
GOALS = {
    "rps against the better of MLServer and KServe": (">=", 1.5),
    "p99 against the better of MLServer and KServe": ("<=", 1.0),
    "rps against the better setting of LitServe": (">=", 2.0),
    "rps against Mosec one by one": (">=", 0.7),
    "rps against the bare loop": (">=", 0.98),
    "rps against the best peer": (">=", 1.0),
    "p99 against the best peer": ("<=", 1.05),
    "rps with feedback against without": (">=", 0.97),
    "rps with exits disabled against plain": (">=", 0.98),
}
LAG_MS, MEMORY_MB, START_RATIO = 5.0, 130.0, 1.5


def markdown(figures: Mapping[str, Any]) -> str:
    """Every table, as the documentation has it."""
    return "\n".join(_lines(figures)) + "\n"


def _lines(figures: Mapping[str, Any]) -> Iterator[str]:
    peers = ", ".join(f"{name} {version(name)}" for name in PEERS)
    yield f"Machine: {figures['machine']}. Peers: {peers}."
    parts = figures["parts"]
    for connections, found in parts.get("noop", {}).items():
        yield from _section(f"The model that does nothing, {connections} connection{'s' * (connections != '1')}", found)
    for name in ("vision", "text"):
        if name in parts:
            yield from _section(f"The demo's {name} model, 16 connections", parts[name])
        if f"overhead-{name}" in parts:
            yield from _section(f"Closed exits and feedback, {name} model, 16 connections", parts[f"overhead-{name}"])
    if "lag" in parts or "memory" in parts or "start" in parts:
        yield from ["", "### Event loop, memory, start", "", "| what | figure | goal | |", "|---|---:|---:|---|"]
        yield from _small(parts)


def _section(title: str, found: Mapping[str, Any]) -> Iterator[str]:
    medians = found["medians"]
    rounds = next(iter(found["ratios"].values()))["rounds"]
    yield from ["", f"### {title}", "", f"Medians of {rounds} rounds.", ""]
    yield f"| server | {' | '.join(UNITS.values())} |"
    yield f"|---|{'---:|' * len(UNITS)}"
    for name, values in sorted(medians.items(), key=lambda item: -item[1]["rps"]):
        shown = [f"{values[key]:,.0f}" if key in ("rps", "failed") else f"{values[key]:.2f}" if key in values else ""
                 for key in UNITS]  # fmt: skip
        label = f"**{name}**" if name == OURS else name
        yield f"| {label} | {' | '.join(shown) if 'cores' in values else ' | '.join(s or '-' for s in shown)} |"
    yield from ["", "| apparate's ratio, of the same round | median | least | greatest | goal | |"]
    yield "|---|---:|---:|---:|---:|---|"
    for name, ratio in found["ratios"].items():
        sign, goal = GOALS.get(name, ("", 0.0))
        verdict = _met(ratio["median"], sign, goal)
        shown = f"{sign} {goal:g}" if sign else ""
        yield f"| {name} | {ratio['median']:.2f} | {ratio['low']:.2f} | {ratio['high']:.2f} | {shown} | {verdict} |"


def _met(value: float, sign: str, goal: float) -> str:
    if not sign:
        return ""
    return "met" if (value >= goal if sign == ">=" else value <= goal) else "**not met**"


def _small(parts: Mapping[str, Any]) -> Iterator[str]:
    for name, lag in parts.get("lag", {}).items():
        value = f"{lag['p99_ms']:.2f} ms"
        yield f"| event loop late at p99, {name} | {value} | <= {LAG_MS:g} ms | {_met(lag['p99_ms'], '<=', LAG_MS)} |"
    for name, one in parts.get("memory", {}).items():
        beyond = one["beyond_torch_mb"]
        words = f"{beyond:.0f} MB of {one['worker_mb']:.0f}"
        yield f"| memory beyond torch, {name} | {words} | <= {MEMORY_MB:g} MB | {_met(beyond, '<=', MEMORY_MB)} |"
    for name, one in parts.get("start", {}).items():
        words = f"{one['ratio']:.2f} ({one['ready_s']:.2f} s and {one['torch_and_weights_s']:.2f} s)"
        verdict = _met(one["ratio"], "<=", START_RATIO)
        yield f"| start to ready against torch and weights, {name} | {words} | <= {START_RATIO:g} | {verdict} |"


def write_docs(figures: Mapping[str, Any], file: Path) -> None:
    """Put the tables between the marks of a page. Raises ValueError for a page without them."""
    text = file.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{file} has no {BEGIN} and {END}")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    file.write_text(f"{before}{BEGIN}\n{markdown(figures)}{END}{after}")


def draw(figures: Mapping[str, Any], file: Path) -> None:
    """Requests/s and p99 of every server, a row of bars for each load."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    parts = figures["parts"]
    rows = [(f"no-op, {c} connection{'s' * (c != '1')}", one) for c, one in parts.get("noop", {}).items()]
    rows += [(f"{name}, 16 connections", parts[name]) for name in ("vision", "text") if name in parts]
    heights = [len(found["medians"]) for _, found in rows]
    shape = {"height_ratios": heights}
    figure, axes = plt.subplots(len(rows), 2, figsize=(11, 0.36 * sum(heights) + 0.9 * len(rows)), gridspec_kw=shape)
    for (title, found), pair in zip(rows, axes.reshape(len(rows), 2), strict=True):
        names = sorted(found["medians"], key=lambda name: found["medians"][name]["rps"])
        for axis, key, words in zip(pair, ("rps", "p99_ms"), ("requests/s", "p99, ms"), strict=True):
            values = [found["medians"][name][key] for name in names]
            spread = [[one[key] for one in found["samples"][name]] for name in names]
            ends = [[v - min(s) for v, s in zip(values, spread, strict=True)],
                    [max(s) - v for v, s in zip(values, spread, strict=True)]]  # fmt: skip
            colours = ["#1f6f8b" if name == OURS else "#b8c4cc" for name in names]
            axis.barh(names, values, xerr=ends, color=colours, error_kw={"lw": 0.8, "ecolor": "#555"})
            for place, (name, value) in enumerate(zip(names, values, strict=True)):
                ink = "white" if name == OURS and value > 0.2 * max(values) else "black"
                shown = f"{value:,.0f}" if key == "rps" else f"{value:.1f}"
                axis.text(0, place, f" {shown}", va="center", fontsize=7, color=ink)
            axis.set_title(f"{title}: {words}", fontsize=9, loc="left")
            axis.tick_params(labelsize=7)
            axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)
    plt.close(figure)
