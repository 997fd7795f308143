"""`apparate plan`, `pause`, `resume`, `rollback`: what a person may do about a model's plan, here and in a cluster."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.cli.legend import explains, print_legend
from apparate.cli.output import Format, Output, show
from apparate.cli.places import choose
from apparate.cli.status import per_cent
from apparate.cli.tables import table
from apparate.cli.target import Context, Json, Kubeconfig, Name, Namespace, Target, Url, key_of

OF_PLANS = ("would lose", "would save", "would exit", "records")


@explains(*OF_PLANS)
def plan_command(
    ctx: typer.Context,
    name: Name,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """The plan of a model, and those before it that `rollback` can put in force again.

    Each with what it would have done to today's window. The last column is of the time when it was decided.
    """
    target = choose(ctx, url, namespace, context, kubeconfig)
    one = target.view(name)
    on_window = _on_window(target, key_of(one))
    plans = [
        {**plan, "onWindow": on_window.get(plan["revision"])} for plan in [one["plan"], *target.plans(key_of(one))]
    ]
    rows = [
        (
            str(plan["revision"]),
            plan.get("decidedAt", ""),
            plan.get("reason", ""),
            *(per_cent((plan["onWindow"] or {}).get(part)) for part in ("loss", "saving", "exitRate")),
            str((plan["onWindow"] or {}).get("records", "")),
            ", ".join(f"{ramp['ramp']} < {ramp['threshold']:.4f}" for ramp in plan.get("ramps", [])) or "none",
            plan.get("message", ""),
        )
        for plan in plans
    ]
    paused = ", paused" if one.get("paused") else ""
    title = f"{key_of(one)}: plans, newest first{paused}"
    columns = ("revision", "decided", "reason", *OF_PLANS, "thresholds", "why then")

    def shown() -> None:
        table(title, columns, rows)
        print_legend(*OF_PLANS)

    show(plans, output, shown)


def _on_window(target: Target, key: str) -> dict[int, Json]:
    """What the controller says each plan would have done to today's window, by revision; nothing when it cannot be
    asked, and then the plans are still told."""
    try:
        return {plan["revision"]: plan for plan in target.asked(key, "plans/replayed")["plans"]}
    except CommandError as error:
        print(f"what each plan would do on today's window is not known: {error}", file=sys.stderr)
        return {}


def pause_command(
    ctx: typer.Context,
    name: Name,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """Keep a model's plan as it is, until `resume`; guards still close exits, and what is observed goes on."""
    target = choose(ctx, url, namespace, context, kubeconfig)
    _show_pause(target, name, True, output)


def resume_command(
    ctx: typer.Context,
    name: Name,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """Have a model's plan follow its traffic again."""
    target = choose(ctx, url, namespace, context, kubeconfig)
    _show_pause(target, name, False, output)


def _show_pause(target: Target, name: str, paused: bool, output: Format) -> None:
    """Pause a model or let it go on, and tell what holds."""
    key = key_of(target.view(name))
    target.pause(key, paused)
    one = target.view(key)
    revision = one["plan"]["revision"]
    parts = ("namespace", "name", "paused", "pausedSince", "pausedBy")
    said = f"{key} is paused at plan" if paused else f"{key} adapts again from plan"
    told = {part: one.get(part) for part in parts} | {"revision": revision}
    show(told, output, lambda: print(f"{said} revision {revision}"))


def rollback_command(
    ctx: typer.Context,
    name: Name,
    revision: Annotated[
        int | None,
        typer.Argument(
            min=1, metavar="REVISION", show_default=False, help="Required: that of a plan which `apparate plan` lists."
        ),
    ] = None,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """Put an earlier plan in force again, under a new revision. Adaptation goes on from it: pause first to keep it."""
    target = choose(ctx, url, namespace, context, kubeconfig)
    one = target.view(name)
    if revision is None:
        known = ", ".join(str(plan["revision"]) for plan in target.plans(key_of(one))) or "none yet"
        told = f"`{ctx.find_root().info_name} plan {name}` tells of each"
        raise CommandError(f"REVISION is missing; of {key_of(one)} there are: {known}; {told}", BAD_INPUT)
    plan = target.roll_back(key_of(one), revision)
    said = f"{key_of(one)}: plan revision {revision} is in force again, as {plan['revision']}"
    show(plan, output, lambda: print(said))
