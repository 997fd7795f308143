"""Controller and operator: whether somebody decides, whether it reaches workers, and what the cluster says."""

from __future__ import annotations

from boards.shared import BY_MODEL, FIRING, MODELS, NAME, NAMESPACES, quantile, rate
from panels import MODEL, RATE, Board, Panel, Query, Row

CONTROLLER = (
    Panel(
        "Controllers that adapt",
        "Exactly one has to. 0: thresholds stay as they are, guards go on. 2: for a moment, at a change of leader.",
        "none",
        (Query("sum(apparate_leader) or vector(0)"),),
        kind="stat",
        width=4,
        decimals=0,
    ),
    Panel(
        "Models adapted",
        "Models whose feedback is read now.",
        "none",
        (Query(f"sum(max by (namespace, model)(apparate_model_adapting{{{MODEL}}}))"),),
        kind="stat",
        width=4,
        decimals=0,
    ),
    Panel(
        "Decisions by reason",
        "Decisions per minute. Unchanged: nothing better was found. LossAboveBudget: an alarm was answered. Those that "
        "end in ByHand are people's.",
        "none",
        (Query(f"60 * sum by (reason)({rate('apparate_decisions_total', MODEL)})", "{{reason}}"),),
        stacked=True,
    ),
    Panel(
        "Time to decide",
        "99th percentile, by model. Workers do not wait for it.",
        "s",
        (Query(quantile(0.99, "apparate_decision_seconds", MODEL, "namespace, model"), NAME),),
    ),
    Panel(
        "Workers that run an older plan",
        "Live workers less those that run the plan in force. Above 0 for long: a worker refuses it or is cut off.",
        "none",
        (Query(f"max by (namespace, model)(apparate_workers{{{MODEL}}} - apparate_updated_workers{{{MODEL}}})", NAME),),
        limits=(1.0,),
    ),
    Panel(
        "Plans that workers refused",
        "Refusals per minute by reason.",
        "none",
        (Query(f"60 * sum by (model, reason)({rate('apparate_plans_refused_total', MODEL)})", "{{model}} {{reason}}"),),
    ),
    Panel(
        "Adaptation",
        "1 where exits are meant to open; 0 where adaptation is paused or the policy is never.",
        "none",
        (Query(f"max by (namespace, model)(apparate_adaptation_wanted{{{MODEL}}})", NAME),),
        most=1,
    ),
    Panel(
        "Failures of the controller",
        "Failed attempts per minute by kind; each is tried again.",
        "none",
        (Query(f"60 * sum by (kind)({rate('apparate_controller_errors_total', MODEL)})", "{{kind}}"),),
    ),
    Panel(
        "Writes of statuses",
        "Writes of the controller's share of statuses per second, by model.",
        "none",
        (Query(f"{BY_MODEL}({rate('apparate_status_writes_total', MODEL)})", NAME),),
        stacked=True,
    ),
)
OPERATOR = (
    Panel(
        "Operators that act",
        "Exactly one has to. 0: models go on serving, changes of specs wait.",
        "none",
        (Query("sum(apparate_operator_leading) or vector(0)"),),
        kind="stat",
        width=4,
        decimals=0,
    ),
    Panel(
        "Models looked after",
        "EarlyExitModels that the operator knows.",
        "none",
        (Query("max(apparate_operator_models)"),),
        kind="stat",
        width=4,
        decimals=0,
    ),
    Panel(
        "Looks at models, by result",
        "Per second. api: the API server refused or said nothing, unexpected: a fault of the operator; both are tried "
        "again.",
        "ops",
        (Query(f"sum by (result)(rate(apparate_operator_reconciles_total{RATE}))", "{{result}}"),),
        stacked=True,
    ),
    Panel(
        "Time of one look",
        "From the start of a look at a model until everything is written.",
        "s",
        tuple(Query(quantile(q, "apparate_operator_reconcile_seconds", ""), f"{q:.0%}") for q in (0.5, 0.99)),
    ),
    Panel(
        "Waiting, and late",
        "Models that wait to be looked at; and how late the event loop is, in seconds.",
        "none",
        (
            Query("max(apparate_operator_waiting_models)", "models waiting"),
            Query("max(apparate_operator_loop_lag_seconds)", "loop lag, s"),
        ),
    ),
    Panel(
        "Since watches and lists last told",
        "Time since a watch told of a change, by kind (long in a quiet cluster), and since everything was listed. The "
        "list has to come every few minutes.",
        "s",
        (
            Query("time() - max by (kind)(apparate_operator_last_event_timestamp_seconds)", "{{kind}}"),
            Query("time() - max(apparate_operator_last_resync_timestamp_seconds)", "everything listed"),
            Query("max(apparate_operator_resync_interval_seconds)", "listed every"),
        ),
    ),
    Panel(
        "Changes that watches missed",
        "Changes per hour that only a list found. Above 0: something between operator and API server swallows events.",
        "none",
        (Query("3600 * sum by (kind)(rate(apparate_operator_missed_changes_total[1h]))", "{{kind}}"),),
    ),
    Panel(
        "Writes to the Kubernetes API",
        "Writes of the operator per second, by kind and verb. A quiet cluster has none.",
        "ops",
        (Query(f"sum by (kind, verb)(rate(apparate_operator_writes_total{RATE}))", "{{kind}} {{verb}}"),),
        stacked=True,
    ),
)
CLUSTER = (
    Panel(
        "Calls on the Kubernetes API that failed",
        "Per minute, of controller and operator, by verb and HTTP status; 0: no answer. 404, 409 and 410 are in the "
        "normal course of things.",
        "none",
        (
            Query(
                f"60 * sum by (verb, code)(rate(apparate_controller_kubernetes_errors_total{RATE}))",
                "controller {{verb}} {{code}}",
            ),
            Query(
                f"60 * sum by (verb, code)(rate(apparate_operator_kubernetes_errors_total{RATE}))",
                "operator {{verb}} {{code}}",
            ),
        ),
    ),
    Panel(
        "Conditions",
        "What the operator holds of each model: 1 true, 0 not.",
        "none",
        (
            Query(
                f"max by (model, type, reason)(apparate_model_condition{{{MODEL}}})", "{{model}} {{type}}: {{reason}}"
            ),
        ),
        most=1,
    ),
    Panel(
        "Definition of the resource",
        "1 when the installed CustomResourceDefinition lacks fields of this version.",
        "none",
        (Query("max(apparate_operator_crd_outdated)", "outdated"),),
        most=1,
    ),
)
BOARD = Board(
    "control-plane",
    "Control plane",
    "Whether somebody decides, whether plans reach workers, and what the cluster says.",
    (Row("Controller", CONTROLLER), Row("Operator", OPERATOR), Row("Cluster", CLUSTER)),
    (NAMESPACES, MODELS),
    (FIRING,),
)
