"""Expressions and choices that several dashboards share. Rules and dashboards mean the same by the same word."""

from __future__ import annotations

from panels import MODEL, NAMESPACE, RATE, Marks, Panel, Query, Variable

NAMESPACES = Variable("namespace", "label_values(apparate_ready, namespace)")
MODELS = Variable("model", f"label_values(apparate_ready{{{NAMESPACE}}}, model)")
ONE_MODEL = Variable("model", f"label_values(apparate_ready{{{NAMESPACE}}}, model)", several=False)
BY_MODEL = "sum by (namespace, model)"
NAME = "{{namespace}}/{{model}}"

FIRING = Marks(
    "Alert",
    'ALERTS{alertname=~"Apparate.*", alertstate="firing"}',
    "{{alertname}} {{namespace}} {{model}}",
    "red",
)
DECIDED = Marks(
    "Decision",
    f'increase(apparate_decisions_total{{{MODEL}, reason!="Unchanged"}}[30s]) > 0',
    "{{reason}}",
    "blue",
)


def rate(metric: str, labels: str) -> str:
    """Per second, by series."""
    return f"rate({metric}{{{labels}}}{RATE})"


def share(part: str, whole: str) -> str:
    """A part of a whole; nothing while there is none of the whole, which is no 0."""
    return f"{part} / ({whole} > 0)"


def saved(by: str, labels: str) -> str:
    """Share of the time that answers would have taken from the plain model, and did not."""
    part, whole = (f"{by}(rate(apparate_{name}_seconds_sum{{{labels}}}{RATE}))" for name in ("release", "plain"))
    return f"1 - {share(part, whole)}"


def early(by: str, labels: str) -> str:
    """Share of answers that left at a ramp."""
    exits = f'{by}(rate(apparate_exits_total{{{labels}, ramp!="final"}}{RATE}))'
    return share(exits, f"{by}(rate(apparate_exits_total{{{labels}}}{RATE}))")


def left_early(labels: str) -> Panel:
    """How many answers left early, as one figure."""
    return Panel(
        "Left early",
        "Share of answers that left at a ramp.",
        "percentunit",
        (Query(early("sum", labels)),),
        kind="stat",
        width=4,
        decimals=1,
    )


def loss(labels: str, window: str = "10m") -> str:
    """Share of all answers, early or not, that left early and disagree with the model's own; by model."""
    part, whole = (f"{BY_MODEL}(increase(apparate_{n}_total{{{labels}}}[{window}]))" for n in ("wrong_exits", "exits"))
    return share(part, whole)


def loss_of_budget(labels: str) -> str:
    """The loss as a share of what is allowed; by model."""
    budget = f"max by (namespace, model)(apparate_accuracy_budget_ratio{{{labels}}})"
    return f"{loss(labels)} / {budget}"


def quantile(q: float, metric: str, labels: str, by: str = "") -> str:
    """A quantile of a histogram."""
    group = f"le, {by}" if by else "le"
    return f"histogram_quantile({q}, sum by ({group})(rate({metric}_bucket{{{labels}}}{RATE})))"


def mean(metric: str, labels: str, by: str) -> str:
    """The mean of a histogram or summary."""
    part, whole = (f"sum by ({by})(rate({metric}_{end}{{{labels}}}{RATE}))" for end in ("sum", "count"))
    return share(part, whole)
