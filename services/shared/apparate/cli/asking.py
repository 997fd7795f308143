"""`apparate history`, `what-if`, `record`: what the controller remembers, and what other budgets would do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.cli.legend import explains, print_legend
from apparate.cli.output import Format, Output, show
from apparate.cli.places import choose
from apparate.cli.status import per_cent, seen, why
from apparate.cli.tables import table
from apparate.cli.target import Context, Json, Kubeconfig, Name, Namespace, Target, Url, key_of

BUDGETS = (0.0025, 0.005, 0.01, 0.02, 0.05)
MOST_BUDGETS = 16  # that the controller answers at once
OF_DECISIONS = ("loss", "saving", "exits")
OF_BUDGETS = ("would lose", "at most", "would save", "would exit")
OWN = " (the model's)"


@explains(*OF_DECISIONS)
def history_command(
    ctx: typer.Context,
    name: Name,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """Decisions about a model's plan, newest first, each with its reason: the controller's own and people's."""
    target = choose(ctx, url, namespace, context, kubeconfig)
    key = key_of(target.view(name))
    decisions = _decisions(target, key)
    rows = [
        (
            str(one.get("at", "")),
            str(one["reason"]) + (f" x{one['times']}" if one.get("times", 1) > 1 else ""),
            "" if one.get("revision") is None else str(one["revision"]),
            *(per_cent(seen(one).get(name)) for name in ("loss", "saving", "exitRate")),
            str(one["message"]),
        )
        for one in decisions
    ]
    columns = ("decided", "reason", "new plan", "loss", "saving", "exits", "why")

    def shown() -> None:
        table(f"{key}: decisions, newest first", columns, rows)
        print_legend(*OF_DECISIONS)

    show(decisions, output, shown)


def _decisions(target: Target, key: str) -> list[Json]:
    """What the controller remembers; where it cannot be asked, the plans that the object remembers."""
    try:
        found: list[Json] = target.asked(key, "")["decisions"]
        return found
    except CommandError as error:
        one = target.view(key)
        plans = [one["plan"], *target.plans(key)]
        print(f"only plans are shown: {error}", file=sys.stderr)
    return [
        {"at": plan.get("decidedAt", ""), **{part: plan.get(part, "") for part in ("reason", "message", "revision")}}
        for plan in plans
    ]


@explains(*OF_BUDGETS)
def what_if_command(
    ctx: typer.Context,
    name: Name,
    budget: Annotated[
        list[float] | None,
        typer.Option(
            "--budget",
            min=0.0,
            max=0.5,
            help=f"Accuracy loss to try, 0..0.5; may be repeated. Default: {', '.join(map(str, BUDGETS))}.",
        ),
    ] = None,
    ramp_overhead: Annotated[
        float | None,
        typer.Option(min=0.0, max=0.5, help="Choose the ramps anew for this overhead. Default: those of the plan."),
    ] = None,
    confidence: Annotated[float | None, typer.Option(help="Of the certificate. Default: the model's.")] = None,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """What other budgets would save and lose beside the model's own, by the feedback of the last minutes.

    Changes nothing.
    """
    for value in budget or ():
        if value <= 0:
            raise CommandError(f"--budget is {value}, must be above 0 and at most 0.5", BAD_INPUT)
    if confidence is not None and not 0 < confidence < 1:
        raise CommandError(f"--confidence is {confidence}, must be between 0 and 1", BAD_INPUT)
    target = choose(ctx, url, namespace, context, kubeconfig)
    one = target.view(name)
    key = key_of(one)
    asked = [f"accuracyLoss={value!r}" for value in _budgets(budget, one)]
    asked += [f"rampOverhead={ramp_overhead!r}"] if ramp_overhead is not None else []
    asked += [f"confidence={confidence!r}"] if confidence is not None else []
    found = target.asked(key, f"what-if?{'&'.join(asked)}")
    show(found, output, lambda: _frontier(one, found))


def _budgets(asked: list[float] | None, model: Json) -> list[float]:
    """Those asked for and the model's own, as far as there is room for it."""
    budgets = set(asked or BUDGETS)
    if len(budgets) > MOST_BUDGETS:
        raise CommandError(f"{len(budgets)} budgets are asked for, at most {MOST_BUDGETS} at once", BAD_INPUT)
    own = (model.get("budget") or {}).get("accuracyLoss")
    return sorted(budgets | {own} if own and len(budgets) < MOST_BUDGETS else budgets)


def _frontier(model: Json, found: Json) -> None:
    if not found["answers"]:
        print(f"{key_of(model)}: {found.get('problem') or why(model)}")
        return
    in_force = [per_cent(found[name]) for name in ("loss", "saving", "exitRate")]
    rows: list[tuple[str, ...]] = []
    if found["loss"] is not None:
        rows.append(("plan in force", str(len(model["plan"]["ramps"])), in_force[0], "", *in_force[1:], ""))
    for one in found["answers"]:
        opened = [f"{ramp['ramp']} < {ramp['threshold']:.4f}" for ramp in one["ramps"] if ramp["threshold"] > 0]
        bound = per_cent(one["lossUpper"]) if one["certified"] else "none: too few records"
        told = (per_cent(one["loss"]), bound, per_cent(one["saving"]), per_cent(one["exitRate"]))
        own = OWN if one.get("inForce") else ""
        rows.append((f"{one['accuracyLoss']:g}{own}", str(len(one["ramps"])), *told, ", ".join(opened) or "none"))
    columns = ("budget", "ramps", "would lose", "at most", "would save", "would exit", "thresholds")
    table(f"{key_of(model)}: tuned on {found['records']} records", columns, rows)
    print_legend(*OF_BUDGETS)


def record_command(
    ctx: typer.Context,
    name: Name,
    to: Annotated[Path, typer.Argument(help="File to write, .npz.", dir_okay=False)],
    everything: Annotated[
        bool, typer.Option("--all-ramps", help="Only records on which every ramp reported, with those switched off.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Save a model's window of feedback as a recording, for `apparate replay`."""
    if to.suffix != ".npz":
        raise CommandError(f"{to} must end in .npz", BAD_INPUT)
    if to.exists() and not force:
        raise CommandError(f"{to} is there already; --force writes over it", BAD_INPUT)
    target = choose(ctx, url, namespace, context, kubeconfig)
    key = key_of(target.view(name))
    content = target.fetched(key, f"recording?ramps={'all' if everything else 'active'}")
    if not to.parent.is_dir():
        raise CommandError(f"{to.parent} is no folder", BAD_INPUT)
    fresh = to.with_suffix(".npz.part")
    fresh.write_bytes(content)
    fresh.rename(to)
    print(f"{key}: {len(content)} bytes in {to}; try: apparate replay {to}")
