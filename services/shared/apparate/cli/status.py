"""`apparate status`, `apparate exits`, `apparate version`: what is known of models."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import typer

from apparate.cli.legend import explains, print_legend
from apparate.cli.output import Format, Output, show
from apparate.cli.places import choose
from apparate.cli.tables import table
from apparate.cli.target import Context, Everywhere, Kubeconfig, Name, Namespace, Url, key_of

UNREMARKABLE = ("NoTraffic", "NotEnoughFeedback")  # reasons for which a condition is not known though all is well
OF_PAUSING = ("PausedByHand", "ResumedByHand")  # decisions that say nothing of the plan
COLUMNS = ("model", "plan", "on it", "ramps", "exits", "loss", "budget", "saving", "window")
FIGURES = ("exits", "loss", "budget", "saving", "window")
OF_RAMPS = ("would exit", "agreement", "saved per exit")


@explains(*FIGURES)
def status_command(
    ctx: typer.Context,
    url: Url = "",
    namespace: Namespace = "",
    everywhere: Everywhere = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """Plan, window and last decision of every model. While one is paused its figures go on."""
    models = choose(ctx, url, namespace, context, kubeconfig, everywhere).views()

    def shown() -> None:
        table("Models", COLUMNS, map(row, models))
        print_legend(*FIGURES)
        for one in models:
            for line in news(one):
                print(f"{key_of(one)}: {line}")

    show(models, output, shown)


def row(one: dict[str, Any]) -> tuple[str, ...]:
    """A model in a line."""
    observed, window, delivery = seen(one.get("observed", {})), one.get("window", {}), one.get("delivery", {})
    return (
        key_of(one),
        str(one["plan"]["revision"]) + (" paused" if one.get("paused") else ""),
        f"{delivery.get('updatedWorkers', 0)}/{delivery.get('workers', 0)}",
        str(len(one["plan"]["ramps"])),
        per_cent(observed.get("exitRate")),
        per_cent(observed.get("loss")),
        per_cent((one.get("budget") or {}).get("accuracyLoss")),
        per_cent(observed.get("saving")),
        f"{window['records']}/{window.get('size', 0)}" if "records" in window else "",
    )


def seen(observed: dict[str, Any]) -> dict[str, Any]:
    """What was observed; nothing when no answer was looked at, whatever zeros are there then."""
    return observed if observed.get("samples", 1) else {}


def why(one: dict[str, Any]) -> str:
    """Why the plan is what it is."""
    decisions: list[dict[str, Any]] = one.get("decisions", [])
    last = next((each for each in decisions if each["reason"] not in OF_PAUSING), None)
    if last is not None:
        return f"{last['reason']}: {last['message']}"
    return str(one.get("reason") or "no decision since its controller began")


def paused(one: dict[str, Any]) -> str:
    """Since when and by whom a model is paused."""
    since = f" since {one['pausedSince']}" if one.get("pausedSince") else ""
    return f"paused{since}" + (f", by {one['pausedBy']}" if one.get("pausedBy") else "")


def news(one: dict[str, Any]) -> Iterator[str]:
    """What people did last about the plan, why it is what it is, and what is not as one would wish."""
    last = next(iter(one.get("decisions") or ()), None)
    if one.get("paused"):
        yield f"{paused(one)}: the plan stays as it is, what is observed goes on; `apparate resume` ends it"
    elif last is not None and last["reason"] in OF_PAUSING:
        yield f"{last['reason']}: {last['message']}"
    yield why(one)
    yield from troubles(one)


def troubles(one: dict[str, Any]) -> Iterator[str]:
    """What is not as one would wish of a model."""
    for worker in one.get("workers", []):
        if worker.get("refused"):
            yield f"{worker['name']} refuses plan revision {worker.get('refusedRevision', 0)}: {worker['refused']}"
    delivery = one.get("delivery") or {}
    behind = delivery.get("updatedWorkers", 0) < delivery.get("workers", 0)
    if behind and (refused := (one.get("feedback") or {}).get("refused")):  # a total: of what was once, it says nothing
        yield (
            f"{refused} entries of feedback could not be used, as of a model that was prepared anew since: "
            "restart its workers"
        )
    for condition in one.get("conditions", []):
        if condition["status"] == "False":
            yield f"not {condition['type']}: {condition['reason']}: {condition.get('message', '')}"
        elif condition["status"] == "Unknown" and condition["reason"] not in UNREMARKABLE:
            yield f"{condition['type']} is not known: {condition['reason']}: {condition.get('message', '')}"


@explains(*OF_RAMPS)
def exits_command(
    ctx: typer.Context,
    name: Name,
    url: Url = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> None:
    """What each active ramp of a model would let go of the window, how often that agrees, and what it saves."""
    one = choose(ctx, url, namespace, context, kubeconfig).view(name)
    rows = [
        (
            str(ramp["ramp"]),
            str(ramp.get("layer", "")),
            f"{ramp['threshold']:.4f}",
            per_cent(ramp.get("exitRate")),
            per_cent(ramp.get("agreement")),
            "" if ramp.get("savedMs") is None else f"{ramp['savedMs']:.2f} ms",
        )
        for ramp in one.get("ramps", [])
    ]
    title = f"{key_of(one)}, plan revision {one['plan']['revision']}"
    columns = ("ramp", "layer", "threshold", "would exit", "agreement", "saved per exit")

    def shown() -> None:
        table(title, columns, rows)
        print_legend(*OF_RAMPS)
        if not rows:
            print(f"no ramp is active: {why(one)}")

    show(one.get("ramps", []), output, shown)


def version_command() -> None:
    """The version of this installation."""
    print(f"apparate {metadata.version('apparate')}")


def per_cent(ratio: float | None) -> str:
    """A ratio for people; empty when it is not known."""
    return "" if ratio is None else f"{100 * ratio:.1f} %"
