"""What the figures in tables mean: one line under a table, and a paragraph of the command's help."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, TypeVar

MEANINGS = {  # what happened: whatever plan was in force when each answer of the window was given
    "exits": "share of answers that left early, as it happened over the window",
    "agreement": "share of those that are the model's own answer",
    "loss": "share of answers that differ from the model's own, as it happened over the window",
    "at most": "upper bound of the loss, with the budget's confidence",
    "budget": "loss that is allowed",
    "saving": "share of a plain pass's time that answers would have come sooner with the plan in force, on average",
    "saved per exit": "time that an answer which leaves there comes sooner",
    "window": "records that decisions look back on",
    "would exit": "share of the window's answers that would have left early, had this been in force for all of them",
    "would lose": "share of the window's answers that would have differed, had this been in force for all of them",
    "would save": "share of a plain pass's time that they would have come sooner, on average",
    "records": "those of today's window that know the plan's ramps; blank where none does, or the catalog is another",
}
Command = TypeVar("Command", bound=Callable[..., Any])


def legend(*words: str) -> str:
    """What these columns mean, in a line."""
    return "; ".join(f"{word}: {MEANINGS[word]}" for word in words)


def explains(*words: str) -> Callable[[Command], Command]:
    """Have the help of a command say what these columns mean."""

    def explained(command: Command) -> Command:
        command.__doc__ = f"{inspect.cleandoc(command.__doc__ or '')}\n\n{legend(*words).capitalize()}."
        return command

    return explained


def print_legend(*words: str) -> None:
    """The line under a table; dim on a terminal."""
    from rich.console import Console

    Console(file=sys.stdout, highlight=False).print(legend(*words), style="dim", soft_wrap=True, markup=False)
