"""`apparate status`, `apparate exits`, `apparate version`: what the controller knows, as tables or JSON."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable
from importlib import metadata
from typing import Annotated, Any

import typer

from apparate.cli.errors import BAD_INPUT, FAILED, CommandError
from apparate.cli.stack import CONTROLLER_PORT

TIMEOUT_S = 5.0
DEFAULT_URL = f"http://127.0.0.1:{CONTROLLER_PORT}"

Url = Annotated[
    str,
    typer.Option(envvar="APPARATE_CONTROLLER_URL", help="Address of the controller, as `apparate serve` prints it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def status_command(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Plan, window and last decision of every model."""
    models = [fetch(url, f"/v1/models/{key}") for key in names(url)]
    if as_json:
        print(json.dumps(models, indent=2))
        return
    rows, lines = [], []
    for one in models:
        last: dict[str, Any] = next(iter(one.get("decisions", [])), {})
        observed, window, delivery = one.get("observed", {}), one.get("window", {}), one.get("delivery", {})
        rows.append(
            (
                key_of(one),
                str(one["plan"]["revision"]),
                f"{delivery.get('updatedWorkers', 0)}/{delivery.get('workers', 0)}",
                str(len(one["plan"]["ramps"])),
                per_cent(observed.get("exitRate")),
                per_cent(observed.get("loss")),
                per_cent(observed.get("saving")),
                f"{window.get('records', 0)}/{window.get('size', 0)}",
            )
        )
        lines.append(f"{key_of(one)}: " + (f"{last['reason']}: {last['message']}" if last else one.get("reason", "")))
    table("Models", ("model", "plan", "on it", "ramps", "exits", "loss", "saving", "window"), rows)
    for line in lines:
        print(line)


def exits_command(
    name: Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of a model.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """What each active ramp of a model lets go, how often those answers agree, and what they save."""
    known = names(url)
    wanted = [key for key in known if name in (key, key.partition("/")[2])]
    if len(wanted) != 1:
        what = f"{name} is in {', '.join(wanted)}" if wanted else f"there is no model {name}"
        raise CommandError(f"{what}; models are: {', '.join(known) or 'none'}", BAD_INPUT)
    one = fetch(url, f"/v1/models/{wanted[0]}")
    if as_json:
        print(json.dumps(one.get("ramps", []), indent=2))
        return
    rows = [
        (
            str(ramp["ramp"]),
            str(ramp["layer"]),
            f"{ramp['threshold']:.4f}",
            per_cent(ramp.get("exitRate")),
            per_cent(ramp.get("agreement")),
            "" if ramp.get("savedMs") is None else f"{ramp['savedMs']:.2f} ms",
        )
        for ramp in one.get("ramps", [])
    ]
    title = f"{wanted[0]}, plan revision {one['plan']['revision']}"
    table(title, ("ramp", "layer", "threshold", "exits", "agreement", "saved per exit"), rows)


def version_command() -> None:
    """The version of this installation."""
    print(f"apparate {metadata.version('apparate')}")


def names(url: str) -> list[str]:
    """namespace/name of every model the controller at `url` adapts."""
    found = fetch(url, "/v1/models")
    return [key_of(one) for one in (found["models"] if isinstance(found, dict) else found)]


def key_of(one: dict[str, Any]) -> str:
    """namespace/name of a model as the controller describes it."""
    return f"{one.get('namespace', 'default')}/{one.get('name', '')}"


def fetch(url: str, path: str) -> Any:
    """JSON of a GET. Raises CommandError that says what to check."""
    if not url.startswith(("http://", "https://")):
        raise CommandError(f"--url is {url!r}, must start with http:// or https://", BAD_INPUT)
    try:
        with urllib.request.urlopen(url.rstrip("/") + path, timeout=TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise CommandError(f"{url}{path}: the controller answered {error.code} {error.reason}", FAILED) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"no controller at {url}: {reason}; is `apparate serve` running? (--url)", FAILED) from None


def per_cent(ratio: float | None) -> str:
    """A ratio for people; empty when it is not known."""
    return "" if ratio is None else f"{100 * ratio:.1f} %"


def table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """Print a table."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(*columns, title=title, title_justify="left")
    for row in rows:
        shown.add_row(*row)
    Console().print(shown)
