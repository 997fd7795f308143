"""One model: what its clients see, where answers leave, what is lost, and what the plan is."""

from __future__ import annotations

from boards.shared import (
    DECIDED,
    FIRING,
    NAMESPACES,
    ONE_MODEL,
    early,
    left_early,
    loss,
    loss_of_budget,
    mean,
    quantile,
    rate,
    saved,
    share,
)
from panels import MODEL, RATE, Board, Panel, Query, Row

BUDGET = f"max(apparate_accuracy_budget_ratio{{{MODEL}}})"
RELEASE, PLAIN = "apparate_release_seconds", "apparate_plain_seconds"
QUANTILES = {0.5: "median", 0.9: "90th", 0.99: "99th"}

NOW = (
    Panel(
        "Median latency",
        "From arrival at the worker to answer, half of the answers are faster.",
        "s",
        (Query(quantile(0.5, RELEASE, MODEL)),),
        kind="stat",
        width=4,
    ),
    Panel(
        "Median, plain",
        "The same for what the plain model would have taken: release, plus what was left of the pass as profiled.",
        "s",
        (Query(quantile(0.5, PLAIN, MODEL)),),
        kind="stat",
        width=4,
    ),
    Panel(
        "Time saved",
        "Share of the plain model's time from arrival to answer that early exits spared.",
        "percentunit",
        (Query(saved("sum", MODEL)),),
        kind="stat",
        width=4,
        decimals=1,
    ),
    left_early(MODEL),
    Panel(
        "Loss against budget",
        "Answers of the last 10 minutes that disagree with the model's own, as a share of what is allowed.",
        "percentunit",
        (Query(f"max({loss_of_budget(MODEL)})"),),
        kind="stat",
        width=4,
        limits=(0.8, 1.0),
        decimals=0,
    ),
    Panel(
        "Ramps in force",
        "Ramps of the plan in force; some may be closed and only report.",
        "none",
        (Query(f"max(apparate_active_ramps{{{MODEL}}})"),),
        kind="stat",
        width=4,
        decimals=0,
    ),
)


def _distribution(metric: str) -> str:
    part = f'sum by (le)(rate({metric}_bucket{{{MODEL}, le!="+Inf"}}{RATE}))'
    return f"{part} / scalar(sum(rate({metric}_count{{{MODEL}}}{RATE})))"


LATENCY = (
    Panel(
        "How many answers are there by when",
        "Share of answers (up) within a time (across): with exits, and what it would have been plain. The gap between "
        "the curves is what early exits give.",
        "percentunit",
        (Query(_distribution(RELEASE), "with exits"), Query(_distribution(PLAIN), "plain")),
        kind="cdf",
    ),
    Panel(
        "Latency over time",
        "Quantiles of the time from arrival at the worker to answer, with exits and plain.",
        "s",
        tuple(
            Query(quantile(q, metric, MODEL), f"{name} {side}")
            for q, name in QUANTILES.items()
            for metric, side in ((RELEASE, "with exits"), (PLAIN, "plain"))
        ),
        logarithmic=True,
    ),
    Panel(
        "Time saved over time",
        "Share of the plain model's time that early exits spared; beside it what the controller's replay of the window "
        "says of the pass alone, without the queue.",
        "percentunit",
        (
            Query(saved("sum", MODEL), "saved"),
            Query(f"max(apparate_observed_saving_ratio{{{MODEL}}})", "of the pass, by the window"),
        ),
    ),
)
EXITS = (
    Panel(
        "Answers by where they left",
        "Answers per second by ramp, shallow ones first; final is the model's own answer.",
        "reqps",
        (Query(f"sum by (ramp)({rate('apparate_exits_total', MODEL)}) > 0", "{{ramp}}"),),
        stacked=True,
        width=6,
    ),
    Panel(
        "Left early",
        "Share of answers that left at a ramp: of those of now, and of all in the window.",
        "percentunit",
        (
            Query(early("sum", MODEL), "answers"),
            Query(f"max(apparate_observed_exit_ratio{{{MODEL}}})", "window"),
        ),
        most=1,
        width=6,
    ),
    Panel(
        "Thresholds",
        "Threshold of each open ramp. A request leaves where its error score is below it; 0 is closed.",
        "none",
        (Query(f"max by (ramp)(apparate_ramp_threshold_ratio{{{MODEL}}}) > 0", "{{ramp}}"),),
        width=6,
    ),
    Panel(
        "Plan revision",
        "Revision that the controller has decided on, and the least and the greatest that workers run. They differ for "
        "a second or two after a decision.",
        "none",
        (
            Query(f"max(apparate_published_plan_revision{{{MODEL}}})", "decided"),
            Query(f"min(apparate_plan_revision{{{MODEL}}})", "least at a worker"),
            Query(f"max(apparate_plan_revision{{{MODEL}}})", "greatest at a worker"),
        ),
        width=6,
    ),
)
ACCURACY = (
    Panel(
        "Loss",
        "Share of released answers that disagree with the model's own: of the last 10 minutes by the workers, of the "
        "window by the controller with its upper confidence bound; and the budget.",
        "percentunit",
        (
            Query(f"max({loss(MODEL)})", "last 10 minutes"),
            Query(f"max(apparate_observed_loss_ratio{{{MODEL}}})", "window"),
            Query(f"max(apparate_observed_loss_upper_ratio{{{MODEL}}})", "window, upper bound"),
            Query(BUDGET, "budget"),
        ),
        width=6,
    ),
    Panel(
        "Agreement of each ramp",
        "Of the answers that left at a ramp, the share that is the model's own. Deep ramps may be trusted less than "
        "this suggests: they get what shallow ones were unsure of.",
        "percentunit",
        (
            Query(
                "1 - "
                + share(
                    f"sum by (ramp)(increase(apparate_wrong_exits_total{{{MODEL}}}[10m]))",
                    f"sum by (ramp)(increase(apparate_exits_total{{{MODEL}}}[10m]))",
                ),
                "{{ramp}}",
            ),
        ),
        most=1,
        least=None,
        width=6,
    ),
    Panel(
        "Guard",
        "Share of workers whose guard keeps exits closed: alarm, until a new plan comes; spent, until answers to come "
        "have earned more.",
        "percentunit",
        (
            Query(f"avg(apparate_guard_closed{{{MODEL}}})", "alarm"),
            Query(f"avg(apparate_guard_spent{{{MODEL}}})", "spent"),
        ),
        most=1,
        width=6,
    ),
    Panel(
        "Alarms of the guard",
        "Per minute, of all workers. Each closes the exits until the controller's next plan, for a moment. Many "
        "come with inputs whose mistakes come in bursts, as frames of a video do.",
        "none",
        (Query(f"60 * sum({rate('apparate_guard_alarms_total', MODEL)})", "alarms"),),
        width=6,
    ),
)
WORK = (
    Panel(
        "Time in the queue",
        "From arrival to the start of the pass.",
        "s",
        tuple(Query(quantile(q, "apparate_queue_seconds", MODEL), name) for q, name in QUANTILES.items()),
        logarithmic=True,
    ),
    Panel(
        "Requests of a pass",
        "Mean size of batches, and the most there may be.",
        "none",
        (
            Query(
                f"sum({rate('apparate_batch_requests_sum', MODEL)}) / "
                f"sum({rate('apparate_batch_requests_count', MODEL)})",
                "mean",
            ),
            Query(f"max(apparate_batch_limit_requests{{{MODEL}}})", "most"),
        ),
    ),
    Panel(
        "Where a pass spends its time",
        "Mean time from one ramp to the next, the ramp included; final is the rest of the model. One pass in 32 is "
        "timed.",
        "s",
        (Query(mean("apparate_segment_seconds", MODEL, "ramp"), "{{ramp}}"),),
        stacked=True,
    ),
    Panel(
        "Length of a pass",
        "From its start until the last of its answers has left.",
        "s",
        tuple(Query(quantile(q, "apparate_pass_seconds", MODEL), name) for q, name in QUANTILES.items()),
        logarithmic=True,
    ),
    Panel(
        "Requests by status",
        "Requests per second by protocol and HTTP status; 429: the queue is full, 499: the client went away, 504: too "
        "long in the queue.",
        "reqps",
        (Query(f"sum by (protocol, code)({rate('apparate_requests_total', MODEL)}) > 0", "{{protocol}} {{code}}"),),
        stacked=True,
    ),
    Panel(
        "Compute saved",
        "Time of the device that each second spares, as profiled, where answered rows are computed no further. 0 in "
        "the mode report.",
        "s",
        (Query(f"sum({rate('apparate_saved_seconds_total', MODEL)})", "saved each second"),),
    ),
    Panel(
        "Checked answers",
        "Share of answers in passes that ran to the end, and the probability with which a pass is drawn for it now. "
        "Below 1 in the mode compact only.",
        "percentunit",
        (
            Query(
                share(
                    f"sum({rate('apparate_checked_answers_total', MODEL)})",
                    f"sum({rate('apparate_exits_total', MODEL)})",
                ),
                "checked",
            ),
            Query(f"avg(apparate_full_share_ratio{{{MODEL}}})", "drawn now"),
        ),
        most=1,
    ),
    Panel(
        "Rows that go no further",
        "Of the mode compact, per second: answered rows that are dropped, and passes that end before the end of the "
        "model. Exits that the rule did not allow there must be none of.",
        "none",
        (
            Query(f"sum({rate('apparate_dropped_rows_total', MODEL)})", "rows"),
            Query(f"sum({rate('apparate_stopped_passes_total', MODEL)})", "passes"),
            Query(f"sum({rate('apparate_forced_exits_total', MODEL)})", "forced exits"),
        ),
    ),
    Panel(
        "Late answers",
        "Share of answers that come later than the objective of the spec (serving.slo), and the share that may. "
        "Nothing where there is no objective.",
        "percentunit",
        (
            Query(
                share(
                    f"sum({rate('apparate_slo_late_answers_total', MODEL)})",
                    f"sum({rate('apparate_slo_answers_total', MODEL)})",
                ),
                "late",
            ),
            Query(f"1 - max(apparate_slo_target_ratio{{{MODEL}}})", "allowed"),
        ),
    ),
    Panel(
        "Objective",
        "Latency that spec.serving.slo asks for, if it does, and what the 99th percentile of answers is.",
        "s",
        (
            Query(f"max(apparate_slo_seconds{{{MODEL}}})", "objective"),
            Query(quantile(0.99, RELEASE, MODEL), "99th"),
        ),
    ),
    Panel(
        "Workers",
        "What each worker of the model is: version, device, and the catalog of ramps that it was given.",
        "none",
        (Query(f"count by (version, device, catalog)(apparate_worker_info{{{MODEL}}})", "Workers"),),
        kind="table",
    ),
)
BOARD = Board(
    "model",
    "Model",
    "What the clients of one model see, where answers leave, what is lost, and what the plan is.",
    (
        Row("Now", NOW),
        Row("Latency", LATENCY),
        Row("Exits and plan", EXITS),
        Row("Accuracy", ACCURACY),
        Row("Queue and passes", WORK),
    ),
    (NAMESPACES, ONE_MODEL),
    (DECIDED, FIRING),
)
