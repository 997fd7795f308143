"""What `apparate doctor` says of a model, behind a local controller or in a cluster: pause, loss, exits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from apparate.cli.findings import FAIL, OK, WARN, Found, runbook
from apparate.cli.status import paused, per_cent, seen
from apparate.cli.target import DEFAULT_URL, Json, key_of

AT_RISK = 0.8  # share of the accuracy budget above which ApparateAccuracyBudgetAtRisk fires, too

Command = Callable[[str, Json], str]
"""(subcommand, model) to the command line that a person types."""


class Remark(NamedTuple):
    """One thing that is not as one would wish."""

    verdict: str
    told: str
    next: str


def locally(url: str) -> Command:
    """Commands for the models of the controller at `url`."""
    where = "" if url.rstrip("/") == DEFAULT_URL else f" --url {url}"
    return lambda verb, one: f"apparate {verb} {key_of(one).removeprefix('default/')}{where}"


def in_a_cluster(verb: str, one: Json) -> str:
    """Commands for the models of a cluster."""
    return f"kubectl apparate {verb} {one['name']} -n {one['namespace']}"


def of_model(one: Json, well: str, command: Command) -> Found:
    """A model whose workers run its plan. `well` is what is said of it in any case."""
    remarks = [*_of_pause(one, command), *_of_loss(one), *_of_exits(one, command)]
    verdict = next((worst for worst in (FAIL, WARN) if any(worst == each.verdict for each in remarks)), OK)
    told, steps = [each.told for each in remarks], [each.next for each in remarks]
    return Found(f"model {key_of(one)}", verdict, "; ".join([*filter(None, told), well]), "; ".join(steps))


def _of_pause(one: Json, command: Command) -> Iterator[Remark]:
    if one.get("paused"):
        yield Remark(WARN, paused(one), f"`{command('resume', one)}`, when its plan may follow the traffic again")


def _of_loss(one: Json) -> Iterator[Remark]:
    """The loss against the budget, once as many answers were looked at as AccuracyMet wants."""
    look = seen(one.get("observed") or {})
    budget, loss = (one.get("budget") or {}).get("accuracyLoss"), look.get("loss")
    if not budget or loss is None or look.get("samples", 0) < _needed(one):
        return
    told = f"{per_cent(loss)} of the answers differ from the model's own, {per_cent(budget)} allowed"
    if loss > budget:
        yield Remark(FAIL, f"above the accuracy budget: {told}", runbook("ApparateAccuracyBudgetBroken"))
    elif loss > AT_RISK * budget:
        yield Remark(WARN, f"accuracy budget at risk: {told}", runbook("ApparateAccuracyBudgetAtRisk"))


def _of_exits(one: Json, command: Command) -> Iterator[Remark]:
    """Why nothing leaves early: for good, for now, or not yet."""
    if one.get("guarded"):
        told = f"guards have closed the exits of {one['guarded']} workers"
        yield Remark(WARN, told, runbook("ApparateGuardOpenTooLong"))
    ramps, needed = one["plan"].get("ramps") or [], _needed(one)
    if not ramps:
        yield Remark(WARN, "no ramp is active", runbook("ApparateNoExits"))
        return
    window = one.get("window") or {}
    size = window.get("size", 0)
    late = _last(one) == "NotEnoughFeedback" and window.get("records", 0) >= size
    if size and (needed > size or late):
        budget = per_cent((one.get("budget") or {}).get("accuracyLoss"))
        more = f"to {needed} or more" if needed > size else "further"
        yield Remark(
            WARN,
            f"nothing can ever leave early: the window of {size} records is too small for a budget of {budget}",
            f"raise spec.adaptation.window {more}, or spec.budget.accuracyLoss: `{command('what-if', one)}`",
        )
    elif not any(ramp.get("threshold", 0) > 0 for ramp in ramps):
        if seen(one.get("observed") or {}).get("samples", 0) < needed:
            yield Remark(OK, "", "send requests: nothing leaves early before there is enough feedback")
        else:
            yield Remark(WARN, "no exit is open", runbook("ApparateNoExits"))


def _last(one: Json) -> str:
    """The reason of the newest decision."""
    return next((str(each["reason"]) for each in one.get("decisions") or ()), "")


def _needed(one: Json) -> int:
    """Fewest records with which a model's budget can be proven; 0 when the budget is not told."""
    from apparate.adaptation.policy import Budget, least_records

    budget = one.get("budget") or {}
    if not budget.get("accuracyLoss"):
        return 0
    asked = (budget["accuracyLoss"], budget.get("rampOverhead", 0.0), budget.get("confidence", 0.95))
    return least_records(Budget(*map(float, asked)))
