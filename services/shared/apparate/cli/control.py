"""`apparate plan`, `pause`, `resume`, `rollback`: what a person may do about a model's plan, here and in a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from apparate.cli.output import Format, Output, show
from apparate.cli.places import choose
from apparate.cli.tables import table
from apparate.cli.target import Context, Kubeconfig, Name, Namespace, Url, key_of


def plan_command(
    ctx: typer.Context,
    name: Name,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """The plan of a model, and those before it that `rollback` can put in force again."""
    target = choose(ctx, url, namespace, context, kubeconfig)
    one = target.view(name)
    plans = [one["plan"], *target.plans(key_of(one))]
    rows = [
        (
            str(plan["revision"]),
            plan.get("decidedAt", ""),
            plan.get("reason", ""),
            ", ".join(f"{ramp['ramp']} < {ramp['threshold']:.4f}" for ramp in plan.get("ramps", [])) or "none",
            plan.get("message", ""),
        )
        for plan in plans
    ]
    paused = ", paused" if one.get("paused") else ""
    title = f"{key_of(one)}: plans, newest first{paused}"
    show(plans, output, lambda: table(title, ("revision", "decided", "reason", "exits", "why"), rows))


def pause_command(
    ctx: typer.Context,
    name: Name,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Keep a model's plan as it is; guards still close exits. Local mode: until the controller ends."""
    target = choose(ctx, url, namespace, context, kubeconfig)
    one = target.view(name)
    target.pause(key_of(one), True)
    print(f"{key_of(one)} is paused at plan revision {one['plan']['revision']}")


def resume_command(
    ctx: typer.Context,
    name: Name,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Have a model's plan follow its traffic again."""
    target = choose(ctx, url, namespace, context, kubeconfig)
    one = target.view(name)
    target.pause(key_of(one), False)
    print(f"{key_of(one)} adapts again from plan revision {one['plan']['revision']}")


def rollback_command(
    ctx: typer.Context,
    name: Name,
    revision: Annotated[int, typer.Argument(min=1, help="Of a plan that `apparate plan NAME` lists.")],
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Put an earlier plan in force again, under a new revision. Adaptation goes on from it: pause first to keep it."""
    target = choose(ctx, url, namespace, context, kubeconfig)
    one = target.view(name)
    plan = target.roll_back(key_of(one), revision)
    print(f"{key_of(one)}: plan revision {revision} is in force again, as {plan['revision']}")
