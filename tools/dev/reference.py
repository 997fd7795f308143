"""Pages of docs/reference, rendered from the typed models: descriptions, units, defaults, limits."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from apparate.contract.conditions import ConditionType, Reason
from apparate.contract.metrics import Metric
from apparate.contract.schema import COLUMNS
from apparate.service.settings import ServiceSettings


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def shapes(annotation: Any) -> list[type[BaseModel]]:
    """The models inside a type."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in typing.get_args(annotation) for found in shapes(part)]


def type_name(annotation: Any) -> str:
    """How a reader of YAML would call a type."""
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(parts[0])
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(type_name(part) for part in parts if part is not type(None))
    if origin in (tuple, list):
        return f"list of {type_name(parts[0])}"
    if origin is dict:
        return "mapping"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def limits(field: FieldInfo) -> str:
    """The limits of a value."""
    found = []
    for one in field.metadata:
        for kind, name, sign in ((Gt, "gt", ">"), (Ge, "ge", ">="), (Lt, "lt", "<"), (Le, "le", "<=")):
            if isinstance(one, kind):
                found.append(
                    f"{sign} {getattr(one, name):g}"
                    if isinstance(getattr(one, name), float)
                    else f"{sign} {getattr(one, name)}"
                )
        if isinstance(one, MinLen):
            found.append(f"at least {one.min_length} long")
        if isinstance(one, MaxLen):
            found.append(f"at most {one.max_length} long")
        pattern = getattr(one, "pattern", None)
        if pattern:
            found.append(f"matches `{pattern}`")
    return ", ".join(found)


def default(field: FieldInfo) -> str:
    """The default as YAML would have it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "as below"
    if value is None or value in ("", (), {}):
        return ""
    if isinstance(value, tuple):
        return (
            f"`{json.dumps([one.model_dump(by_alias=True) if isinstance(one, BaseModel) else one for one in value])}`"
        )
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def places(root: type[BaseModel]) -> dict[type[BaseModel], list[str]]:
    """Every shape of the document and where it is, from the outside to the inside."""
    found: dict[type[BaseModel], list[str]] = {}
    waiting: list[tuple[str, type[BaseModel]]] = [("", root)]
    while waiting:
        path, shape = waiting.pop(0)
        found.setdefault(shape, []).append(path)
        for name, field in shape.model_fields.items():
            full = f"{path}.{field.alias or name}".removeprefix(".")
            waiting += [(full, inner) for inner in shapes(field.annotation)]
    return found


def rules(shape: type[BaseModel]) -> str:
    """What must hold between the fields of a shape: what a user reads when it does not."""
    lines = [
        f"- {re.sub('[{][A-Za-z.]+[}]', '…', rule.message)}{' (on Kubernetes only)' if rule.holds is None else ''}\n"
        for rule in getattr(shape, "rules", ())
    ]
    return "\nRefused with:\n\n" + "".join(lines) if lines else ""


def resource_page(root: type[BaseModel]) -> str:
    """Every field of the document, shape by shape; then conditions, and the columns of a list."""
    parts = [
        "# EarlyExitModel\n\n",
        "From `services/shared/apparate/contract/resource.py`, as is the CustomResourceDefinition: what the API\n"
        "server refuses local mode refuses too. On a cluster `kubectl explain eem.spec` says the same as this page.\n"
        "Objects to start from are in [examples](../../examples). A schema for editors is beside this page: put\n"
        "`# yaml-language-server: $schema=earlyexitmodel.schema.json` (with its path) in the first line of a\n"
        "document.\n",
    ]
    for shape, (path, *others) in places(root).items():
        rows = []
        for name, field in shape.model_fields.items():
            full = f"{path}.{field.alias or name}".removeprefix(".")
            rows.append(
                (f"`{full}`", type_name(field.annotation), default(field), limits(field), field.description or "")
            )
        text = " ".join((inspect.getdoc(shape) or "").partition("\n\n")[0].split())
        also = f" Also {', '.join(f'`{other}`' for other in others)}." if others else ""
        parts += [f"\n## {path or 'Document'}\n\n", f"{text}{also}\n\n"]
        parts += [table(("field", "type", "default", "limits", "meaning"), rows), rules(shape)]
    kinds = [(f"`{kind}`", kind.writer, kind.meaning) for kind in ConditionType]
    parts += ["\n## Conditions\n\n", table(("condition", "written by", "True when"), kinds)]
    parts += ["\nReasons: ", ", ".join(f"`{reason}`" for reason in Reason), "; or a pod's own.\n"]
    columns = [(name, f"`{path}`", text) for name, _, path, text in COLUMNS]
    parts += ["\n## Columns of `kubectl get eem`\n\n", table(("column", "field", "meaning"), columns)]
    return "".join(parts)


def settings_page(services: Mapping[str, type[ServiceSettings]]) -> str:
    """Environment variables, service by service."""
    parts = [
        "# Settings\n\n",
        "Environment variables of the services, from their `settings.py`. A name with a service's prefix that is not "
        "here stops the service at start: a misspelt setting is never ignored.\n",
    ]
    for title, cls in services.items():
        made = [field.default_factory is not None for field in cls.model_fields.values()]  # differs by machine
        rows = [
            (f"`{name}`", f"`{value}`" if value not in ("", "None") and not factory else "", text)
            for (name, value, text), factory in zip(cls.describe(), made, strict=True)
        ]
        parts += [f"\n## {title}\n\n", table(("variable", "default", "meaning"), rows)]
    return "".join(parts)


def metrics_page(services: Mapping[str, Sequence[Metric]]) -> str:
    """Metrics, service by service."""
    parts = [
        "# Metrics\n\n",
        "What `/metrics` of each service shows, from `services/shared/apparate/contract/metrics.py`, and `process_*` "
        "of each process. Base units; a counter's name ends in `_total` there. Dashboards and alerts: "
        "[what an installation tells of itself](../dashboards.md).\n\n"
        "Every metric of a worker has `namespace` and `model`; which version, device and catalog that is says "
        "`apparate_worker_info`. `ramp` is the number of a ramp in the catalog, `final` the model's own answer. Who "
        "comes from Triton finds `nv_inference_request_success` and `_failure` as `apparate_requests_total` by `code`, "
        "`nv_inference_count` as `apparate_exits_total`, `nv_inference_exec_count` as `apparate_pass_seconds_count`, "
        "`nv_inference_queue_duration_us` as `apparate_queue_seconds_sum`, `nv_inference_compute_infer_duration_us` as "
        "`apparate_pass_seconds_sum`, `nv_inference_request_duration_us` as `apparate_release_seconds_sum`, "
        "`nv_inference_pending_request_count` as `apparate_waiting_requests`, `nv_gpu_memory_total_bytes` as "
        '`apparate_gpu_memory_bytes{state="total"}`.\n',
    ]
    for title, metrics in services.items():
        rows = [
            (f"`{m.name}{'_total' if m.kind == 'counter' else ''}`", m.kind, ", ".join(m.labels), m.help)
            for m in metrics
        ]
        parts += [f"\n## {title}\n\n", table(("metric", "kind", "labels", "meaning"), rows)]
    return "".join(parts)


EXIT_STATUSES = (
    ("0", "done; for `serve`: it ended as asked and every request had its answer"),
    ("1", "it failed: something is not there or does not answer; trying again may help"),
    ("2", "the input is to blame: an option, a document, a file, a name"),
    ("130", "ended by Ctrl-C"),
)


def command_page() -> str:
    """Subcommands with their arguments and options."""
    import typer.main

    from apparate.cli.main import SUBCOMMANDS, build

    group = typer.main.get_command(build(everything=True))
    commands: Mapping[str, Any] = group.commands  # type: ignore[attr-defined]  # a group has it
    parts = [
        "# The `apparate` command\n\n",
        "Errors are one line on stderr, with the next step where there is one; `-v` anywhere adds the traceback. "
        "Answers go to stdout: `-o json` or `-o yaml` for programs. `source <(apparate completion bash)` completes "
        "subcommands and options; as `kubectl apparate` there are those that work on a cluster.\n\n",
        table(("exit status", "meaning"), EXIT_STATUSES),
    ]
    for name in SUBCOMMANDS:
        command = commands[name]
        rows = []
        for parameter in command.params:
            if parameter.name == "help":
                continue
            shown = ", ".join(f"`{o}`" for o in (*parameter.opts, *parameter.secondary_opts))
            if parameter.param_type_name == "argument":
                shown = f"`{(parameter.metavar or parameter.name or '').upper()}`"
            value = parameter.default
            told = (
                "required"
                if parameter.required
                else ""
                if value in (None, False, "", (), []) or callable(value)
                else f"`{value}`"
            )
            rows.append((shown, told, getattr(parameter, "help", "") or ""))
        parts += [f"\n## apparate {name}\n\n", f"{inspect.cleandoc(command.help or SUBCOMMANDS[name].summary)}\n"]
        if rows:
            parts += ["\n", table(("option", "default", "meaning"), rows)]
        parts.append(f"\n{SUBCOMMANDS[name].exits}\n")
    return "".join(parts)
