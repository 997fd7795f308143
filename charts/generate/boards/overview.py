"""All models at a glance: whether early exits help, whether they do harm, and who is not well."""

from __future__ import annotations

from boards.shared import BY_MODEL, FIRING, NAME, NAMESPACES, early, left_early, loss_of_budget, quantile, saved
from panels import NAMESPACE, RATE, Board, Panel, Query, Row

TOP = (
    Panel(
        "Models",
        "Models that at least one worker serves.",
        "none",
        (Query(f"count(count by (namespace, model)(apparate_ready{{{NAMESPACE}}}))"),),
        kind="stat",
        width=4,
        decimals=0,
    ),
    Panel(
        "Answers",
        "Answers of all models per second, early ones and the models' own.",
        "reqps",
        (Query(f"sum(rate(apparate_exits_total{{{NAMESPACE}}}{RATE}))"),),
        kind="stat",
        width=4,
    ),
    Panel(
        "Time saved",
        "Share of the time from arrival to answer that the plain models would have taken and early exits spared. Below "
        "0 the ramps cost more than they save.",
        "percentunit",
        (Query(saved("sum", NAMESPACE)),),
        kind="stat",
        width=4,
        decimals=1,
    ),
    left_early(NAMESPACE),
    Panel(
        "Worst loss against budget",
        "Of the last 10 minutes, the model that is nearest to its accuracy budget: answers that disagree with the "
        "model's own, as a share of what is allowed. 100% is the limit, and guards close exits before it.",
        "percentunit",
        (Query(f"max({loss_of_budget(NAMESPACE)})"),),
        kind="stat",
        width=4,
        limits=(0.8, 1.0),
        decimals=0,
    ),
    Panel(
        "Alerts",
        "Alerts of this product that fire now, of all namespaces.",
        "none",
        (Query('count(ALERTS{alertname=~"Apparate.*", alertstate="firing"}) or vector(0)'),),
        kind="stat",
        width=4,
        limits=(1.0,),
        decimals=0,
    ),
)
TABLE = Panel(
    "Models now",
    "One line a model. The median is what clients wait inside the worker, from arrival to answer; beside it what the "
    "plain model would have taken.",
    "none",
    (
        Query(f"{BY_MODEL}(rate(apparate_exits_total{{{NAMESPACE}}}{RATE}))", "Answers/s", "reqps"),
        Query(quantile(0.5, "apparate_release_seconds", NAMESPACE, "namespace, model"), "Median", "s"),
        Query(quantile(0.5, "apparate_plain_seconds", NAMESPACE, "namespace, model"), "Median, plain", "s"),
        Query(saved(BY_MODEL, NAMESPACE), "Time saved", "percentunit"),
        Query(early(BY_MODEL, NAMESPACE), "Left early", "percentunit"),
        Query(loss_of_budget(NAMESPACE), "Loss / budget", "percentunit"),
        Query(f"max by (namespace, model)(apparate_guard_closed{{{NAMESPACE}}})", "Guard alarm", "bool_yes_no"),
        Query(f"{BY_MODEL}(apparate_ready{{{NAMESPACE}}})", "Workers ready", "none"),
    ),
    kind="table",
    width=24,
)
COURSE = (
    Panel(
        "Time saved, by model",
        "Share of the plain models' time from arrival to answer that early exits spared.",
        "percentunit",
        (Query(saved(BY_MODEL, NAMESPACE), NAME),),
    ),
    Panel(
        "Loss against budget, by model",
        "Answers of the last 10 minutes that disagree with the model's own, as a share of what is allowed.",
        "percentunit",
        (Query(loss_of_budget(NAMESPACE), NAME),),
        limits=(0.8, 1.0),
    ),
    Panel(
        "Answers, by model",
        "Answers per second, early ones and the models' own.",
        "reqps",
        (Query(f"{BY_MODEL}(rate(apparate_exits_total{{{NAMESPACE}}}{RATE}))", NAME),),
        stacked=True,
    ),
)
HEALTH = (
    Panel(
        "Not as it should be",
        "Conditions that the operator holds for untrue, with their reason; empty when all is well, and where no "
        "operator runs.",
        "none",
        (Query(f"max by (namespace, model, type, reason)(apparate_model_condition{{{NAMESPACE}}} == 0)", "True"),),
        kind="table",
    ),
    Panel(
        "Exits closed by guards",
        "Models of which a worker's guard keeps the exits closed: alarm, the loss is above the budget until a new plan "
        "comes; spent, until the answers to come have earned more.",
        "none",
        (
            Query(f"max by (namespace, model)(apparate_guard_closed{{{NAMESPACE}}})", f"{NAME} alarm"),
            Query(f"max by (namespace, model)(apparate_guard_spent{{{NAMESPACE}}})", f"{NAME} spent"),
        ),
        most=1,
    ),
    Panel(
        "Requests that failed, by model",
        "Requests per second that were answered with an error of the server (5xx), or refused because the queue is "
        "full (429).",
        "reqps",
        (Query(f'{BY_MODEL}(rate(apparate_requests_total{{{NAMESPACE}, code=~"5..|429"}}{RATE}))', NAME),),
    ),
)
BOARD = Board(
    "overview",
    "Overview",
    "Whether early exits help, whether they do harm, and who is not well.",
    (Row("Now", (*TOP, TABLE)), Row("Over time", COURSE), Row("Health", HEALTH)),
    (NAMESPACES,),
    (FIRING,),
)
