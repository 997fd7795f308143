"""That something takes its time, for who sits at a terminal: on stderr, gone when it is done."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show `text` and the time it has taken while the block runs; call what it yields with a newer text."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text)
        yield lambda newer: shown.update(task, description=newer)
