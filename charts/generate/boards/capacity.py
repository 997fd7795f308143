"""Whether there are enough workers, and what all processes use."""

from __future__ import annotations

from boards.shared import BY_MODEL, FIRING, MODELS, NAME, NAMESPACES, quantile, rate, share
from panels import MODEL, RATE, Board, Panel, Query, Row

WORKERS = f"on (job, instance) apparate_worker_info{{{MODEL}}}"


def _of_processes(metric: str, wrap: str = "{}") -> tuple[Query, ...]:
    """A metric of processes, which the library names without saying whose they are."""
    of = wrap.format(metric)
    return (
        Query(f"sum({of} and {WORKERS})", "workers"),
        Query(f"sum({of} and on (job, instance) apparate_leader)", "controllers"),
        Query(f"sum({of} and on (job, instance) apparate_operator_leading)", "operators"),
    )


LOAD = (
    Panel(
        "Answers per worker",
        "Answers per second of the mean worker, by model.",
        "reqps",
        (
            Query(
                f"{BY_MODEL}({rate('apparate_exits_total', MODEL)}) / {BY_MODEL}(apparate_ready{{{MODEL}}} > 0)", NAME
            ),
        ),
    ),
    Panel(
        "Device busy with answers",
        "Share of the time that somebody's pass runs, mean over the workers of a model. Near 100% queues grow; what is "
        "computed only for feedback comes on top and gives way.",
        "percentunit",
        (Query(f"avg by (namespace, model)({rate('apparate_pass_seconds_sum', MODEL)})", NAME),),
        limits=(0.8, 0.95),
    ),
    Panel(
        "Batches, how full",
        "Mean size of passes as a share of the most there may be.",
        "percentunit",
        (
            Query(
                share(
                    f"{BY_MODEL}({rate('apparate_batch_requests_sum', MODEL)})",
                    f"{BY_MODEL}({rate('apparate_batch_requests_count', MODEL)})",
                )
                + f" / max by (namespace, model)(apparate_batch_limit_requests{{{MODEL}}})",
                NAME,
            ),
        ),
        most=1,
    ),
    Panel(
        "Queue, how full",
        "Waiting requests as a share of those that may wait, the fullest worker of each model. Above 100% requests are "
        "refused with 429.",
        "percentunit",
        (
            Query(
                f"max by (namespace, model)(apparate_waiting_requests{{{MODEL}}} / "
                f"apparate_queue_limit_requests{{{MODEL}}})",
                NAME,
            ),
        ),
        limits=(0.5, 0.8),
    ),
    Panel(
        "In flight",
        "Requests accepted and not yet answered, of all workers of a model; autoscalers look at this.",
        "none",
        (Query(f"{BY_MODEL}(apparate_in_flight_requests{{{MODEL}}})", NAME),),
    ),
    Panel(
        "Refused and too late",
        "Requests per second that were refused because the queue is full (429), or given up after too long in it "
        "(504).",
        "reqps",
        (
            Query(
                f'sum by (model, code)(rate(apparate_requests_total{{{MODEL}, code=~"429|504"}}{RATE}))',
                "{{model}} {{code}}",
            ),
        ),
    ),
    Panel(
        "Refused, by class and reason",
        "Requests per second that were refused because more came than could be served: queue_full; low_class, those of "
        "low priority first; would_be_late, their deadline could not have been met.",
        "reqps",
        (
            Query(
                f"sum by (model, priority, reason)({rate('apparate_refused_requests_total', MODEL)})",
                "{{model}} {{priority}} {{reason}}",
            ),
        ),
    ),
    Panel(
        "Pressure",
        "Workers in a stage of what they do under pressure, in this order: short_waits, exits_first, ramps_off, "
        "shed_low, refuse.",
        "none",
        (Query(f"sum by (model, stage)(apparate_pressure{{{MODEL}}})", "{{model}} {{stage}}"),),
    ),
    Panel(
        "Stages of pressure begun",
        "How often a stage began, per minute. A stage that comes and goes all the time says that there is a little too "
        "much load.",
        "none",
        (
            Query(
                f"60 * sum by (model, stage)({rate('apparate_pressure_entries_total', MODEL)})", "{{model}} {{stage}}"
            ),
        ),
    ),
    Panel(
        "Wait in the queue",
        "99th percentile of the time from arrival to the start of the pass, by model.",
        "s",
        (Query(quantile(0.99, "apparate_queue_seconds", MODEL, "namespace, model"), NAME),),
    ),
    Panel(
        "Workers",
        "Workers of each model that the operator sees, and those of them that are ready.",
        "none",
        (
            Query(f"max by (namespace, model)(apparate_model_replicas{{{MODEL}}})", NAME),
            Query(f"max by (namespace, model)(apparate_model_ready_replicas{{{MODEL}}})", f"{NAME} ready"),
        ),
    ),
)
USED = (
    Panel(
        "Processor",
        "Cores in use, by kind of process.",
        "none",
        _of_processes("process_cpu_seconds_total", f"rate({{}}{RATE})"),
        stacked=True,
    ),
    Panel(
        "Memory",
        "Resident memory, by kind of process.",
        "bytes",
        _of_processes("process_resident_memory_bytes"),
        stacked=True,
    ),
    Panel(
        "Memory of GPUs",
        "What workers have allocated and reserved, and the size of their GPUs; nothing where there is none.",
        "bytes",
        (Query(f"sum by (model, state)(apparate_gpu_memory_bytes{{{MODEL}}})", "{{model}} {{state}}"),),
    ),
)
BOARD = Board(
    "capacity",
    "Capacity",
    "Whether there are enough workers, and what all processes use.",
    (Row("Load", LOAD), Row("Used", USED)),
    (NAMESPACES, MODELS),
    (FIRING,),
)
