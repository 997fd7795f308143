"""The report of a run: the JSON that scripts read and the table that people read."""

from __future__ import annotations

import math
import os
import platform
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from apparate.feedback import FINAL
from apparate_demo import load
from apparate_demo.hindsight import second_half
from apparate_demo.recording import Guarding, Table, server_times
from apparate_demo.results import comparison
from apparate_demo.run import Run
from apparate_demo.scenarios.scenario import Workspace


def machine() -> str:
    """Processor, cores and system of this machine."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{name}, {os.cpu_count()} cores, {platform.system()}"


def build(run: Run, *, model: str, workspace: Workspace) -> dict[str, Any]:
    """The whole report as plain data; no NaN or infinity in it."""
    spec = workspace.document.model.spec
    table = Table.of(run.feedback["exits"], run.catalog.ramps)
    guarding = Guarding().take(run.feedback["exits"])
    figures = comparison(
        run.pairs, layers=run.catalog.layers, budget=spec.budget.accuracy_loss, throughput=run.throughput
    )
    first = {"model": model} | {k: figures.pop(k) for k in ("vanilla", "apparate", "saving_p50", "agreement")}
    first |= {k: figures.pop(k) for k in ("agreement_lower", "budget")}
    first |= {"plans": len(run.plans), "records": len(table), "exit_rates": figures.pop("exit_rates")}
    rest = {
        "load": run.options.load,
        "capacity_rps": run.capacity_rps,
        "seconds": run.options.seconds,
        "protocol": run.options.protocol,
        "mode": spec.serving.mode,
        "machine": machine(),
        "traffic": workspace.note,
        "arrivals": load.describe(run.slices, run.capacity_rps),
        **figures,
        "throughput_rounds": run.throughput,
        "server": {side: server_times(batches) for side, batches in run.feedback.items()},
        "protocol_floor_ms": run.ping_ms,
        "cpu_cores": run.cpu_share,
        "guard_alarms": guarding.alarms,
        "guarded_records": guarding.guarded_records,
        "decisions": dict(Counter(p.reason for p in run.plans)),
        "feedback_agreement": _feedback_agreement(table),
        "second_half": second_half(table, run.catalog, run.plans, spec.budget.accuracy_loss),
    }
    clean: dict[str, Any] = _finite(first | rest)
    return clean


def _feedback_agreement(table: Table) -> float:
    """Agreement as the exits worker itself reports it, ramp against final, to check the client's figure against."""
    if not len(table):
        return 1.0
    early = np.flatnonzero(table.exits != FINAL)
    wrong = (table.top1[early, table.exits[early]] != table.final[early]).sum()
    return 1.0 - float(wrong) / len(table)


def _finite(value: Any) -> Any:
    """The same data with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(report: dict[str, Any], console: Console, *, title: str) -> None:
    """Print the table and the lines below it."""
    table = RichTable(title=title, title_justify="left", caption_justify="left")
    for name, justify in (("", "left"), ("plain", "right"), ("early exits", "right"), ("change", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]  # rich's literal type
    plain, exits = report["vanilla"], report["apparate"]
    for key, name in (("p25_ms", "25th percentile"), ("p50_ms", "median"), ("p95_ms", "p95"), ("p99_ms", "p99")):
        table.add_row(f"{name}, ms", _number(plain[key]), _number(exits[key]), _change(exits[key], plain[key]))
    rates = plain["throughput_rps"], exits["throughput_rps"]
    table.add_row("throughput, answers/s", *(f"{rate:.0f}" for rate in rates), _change(rates[1], rates[0]))
    console.print(table)
    console.print(
        f"Same answer as the plain model: [bold]{report['agreement']:.2%}[/] of {report['n']:,} answers "
        f"(at least {report['agreement_lower']:.2%} with 95 % confidence; budget {1 - report['budget']:.0%})."
    )
    left = ", ".join(f"{name} {share:.0%}" for name, share in report["exit_rates"].items() if share >= 0.005)
    console.print(f"Answers left at: {left}.", highlight=False)
    console.print(
        f"{report['plans']} plans from {report['records']:,} records, {report['guard_alarms']} guard alarms; "
        f"load {report['load']:.0%} of {report['capacity_rps']:.0f} answers/s, "
        f"{report['seconds']:.0f} s, {report['protocol']}.",
        highlight=False,
    )
    if report["mode"] == "compact":
        console.print(
            f"Mode compact: {report['records'] / max(report['n'], 1):.0%} of the answers ran to the end of the model, "
            "so that the worker could check them; the others stopped where they left.",
            highlight=False,
        )
    half = report["second_half"]
    if half.get("share_of_hindsight") is not None:
        console.print(
            f"Second half: {half['share_of_hindsight']:.0%} of what the best fixed thresholds would have saved in "
            f"hindsight (they: {half['hindsight_saving']:.0%} of the pass, oracle {half['oracle_saving']:.0%}).",
            highlight=False,
        )
    if report["errors"]:
        console.print(f"[bold red]{report['errors']} requests had no answer: {report['first_error']}")
    console.print(f"Machine: {report['machine']}.", highlight=False)


def _number(value: float | None) -> str:
    return "no answer" if value is None else f"{value:.2f}"


def _change(new: float | None, old: float | None) -> str:
    return "" if new is None or not old else f"{new / old - 1:+.1%}"
