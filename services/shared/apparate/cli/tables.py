"""Tables for people: as wide as the terminal, and as their content in a file or a pipe, where nothing is cut."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from typing import TextIO

WIDEST = 100_000  # characters of a line when nobody looks at a terminal; a message has 4,096 at most


def table(
    title: str,
    columns: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    right: Collection[str] = (),
    to: TextIO | None = None,
) -> None:
    """Print a table, on stdout unless told otherwise; the columns named in `right` are aligned there."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(file=to or sys.stdout, highlight=False)
    shown = Table(title=title or None, title_justify="left")
    for column in columns:
        justify = "right" if column in right else "left"
        shown.add_column(column, no_wrap=not console.is_terminal, justify=justify)  # type: ignore[arg-type]
    for one in rows:
        shown.add_row(*map(escape, one))
    if not console.is_terminal:
        console.width = max(
            console.measure(shown, options=console.options.update(max_width=WIDEST)).maximum, len(title)
        )
    console.print(shown)
