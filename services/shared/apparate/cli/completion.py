"""`apparate completion`: what a shell evaluates to complete subcommands and options."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from apparate.cli.main import COMPLETING, PROGRAM


class Shell(StrEnum):
    """Shells that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion_command(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Print completion for a shell; in bash: source <(apparate completion bash)."""
    from typer._completion_shared import get_completion_script

    print(get_completion_script(prog_name=PROGRAM, complete_var=COMPLETING, shell=shell.value))
