"""How results are shown: a table for people, JSON or YAML for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """What `--output` takes."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("-o", "--output", help="How to show it.", case_sensitive=False)]


def show(found: Any, output: Format, table: Callable[[], None]) -> None:
    """Print plain data as JSON or YAML, or by `table`."""
    if output is Format.JSON:
        print(json.dumps(found, indent=2))
    elif output is Format.YAML:
        import yaml

        print(yaml.safe_dump(found, sort_keys=False, allow_unicode=True), end="")
    else:
        table()
