"""The `apparate` command: which subcommands there are, and how errors reach the user.

A subcommand's module is imported only when that subcommand runs, so that `apparate --help` needs no torch.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer
from typer._completion_classes import completion_init

from apparate.cli.errors import BAD_INPUT, FAILED, CommandError

PROGRAM, PLUGIN = "apparate", "kubectl apparate"
COMPLETING = "_APPARATE_COMPLETE"  # set by the script of `apparate completion`, beside the words typed so far
INTERRUPTED = 130  # 128 + SIGINT, as shells have it


@dataclass(frozen=True)
class Subcommand:
    """Where a subcommand lives, what the list says about it, and which extra it needs."""

    target: str
    """package.module:function."""
    summary: str
    extra: str = ""
    cluster: bool = False
    """Whether it works on a cluster too, and so is a subcommand of `kubectl apparate`."""
    done: str = "done"
    """What exit status 0 means."""
    failed: str = "it failed"
    """What 1 means."""
    blamed: str = "the input is to blame"
    """What 2 means."""

    @property
    def exits(self) -> str:
        """Its exit statuses, for people."""
        return f"Exit status: 0 {self.done}; 1 {self.failed}; 2 {self.blamed}; {INTERRUPTED} ended by Ctrl-C."


SUBCOMMANDS: dict[str, Subcommand] = {
    "demo": Subcommand(
        "apparate_demo.command:demo_command",
        "Serve a real model plain and with early exits on the same traffic, and compare.",
        "worker,controller,bench",
        failed="it failed, or requests had no answer",
    ),
    "init": Subcommand("apparate.cli.init:init_command", "Write a first document for a model, from its folder."),
    "prepare": Subcommand(
        "apparate.cli.prepare:prepare_command",
        "Train and profile the ramps of a model, before serving.",
        "worker",
        done="prepared, now or before",
        failed="it failed, and may work when tried again",
        blamed="document, model or data are to blame, or have no place for a ramp",
    ),
    "check": Subcommand(
        "apparate.cli.check:check_command",
        "Find what is wrong with a document, its model or its data, and what an edit of it would cause.",
        "worker",
        cluster=True,
        done="nothing is wrong",
        blamed="something is wrong, or the input is to blame",
    ),
    "serve": Subcommand(
        "apparate.cli.serve:serve_command",
        "Serve models on this machine: workers, controller and Redis.",
        "worker,controller",
        done="ended as asked (Ctrl-C, SIGTERM), every accepted request answered",
        failed="a port or a Redis cannot be had, a part cannot run, or it did not drain in time",
    ),
    "bench": Subcommand(
        "apparate_demo.bench:bench_command",
        "Load a served model, and tell what its clients see.",
        "worker",
        failed="there is no worker, or requests had no answer",
    ),
    "status": Subcommand(
        "apparate.cli.status:status_command", "Plan, window and last decision of every model.", cluster=True
    ),
    "exits": Subcommand(
        "apparate.cli.status:exits_command",
        "What each ramp of a model lets go, how often it agrees, what it saves.",
        cluster=True,
    ),
    "plan": Subcommand(
        "apparate.cli.control:plan_command", "The plan of a model, and those that were before it.", cluster=True
    ),
    "history": Subcommand(
        "apparate.cli.asking:history_command", "Decisions about a model's plan, each with its reason.", cluster=True
    ),
    "what-if": Subcommand(
        "apparate.cli.asking:what_if_command", "What other budgets would save and lose. Changes nothing.", cluster=True
    ),
    "record": Subcommand(
        "apparate.cli.asking:record_command", "Save a model's window of feedback, for replay.", cluster=True
    ),
    "pause": Subcommand("apparate.cli.control:pause_command", "Keep a model's plan as it is.", cluster=True),
    "resume": Subcommand(
        "apparate.cli.control:resume_command", "Have a model's plan follow its traffic again.", cluster=True
    ),
    "rollback": Subcommand(
        "apparate.cli.control:rollback_command", "Put an earlier plan of a model in force again.", cluster=True
    ),
    "replay": Subcommand("apparate.cli.replay:replay_command", "Tune thresholds on a recording, without serving."),
    "doctor": Subcommand(
        "apparate.cli.doctor:doctor_command",
        "Look for the usual faults of an installation.",
        cluster=True,
        done="no check failed; some may warn",
        failed="a check failed",
    ),
    "completion": Subcommand("apparate.cli.completion:completion_command", "Completion for a shell, to be evaluated."),
    "version": Subcommand("apparate.cli.status:version_command", "The version of this installation.", cluster=True),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def plugin() -> None:
    """Run as `kubectl apparate`: the subcommands that work on a cluster."""
    sys.exit(run(sys.argv[1:], PLUGIN))


def run(argv: Sequence[str], program: str = PROGRAM) -> int:
    """Run `argv`; the exit status. Errors are one line on stderr; -v anywhere adds the traceback."""
    verbose = any(word in ("-v", "--verbose") for word in argv)
    words = [word for word in argv if word not in ("-v", "--verbose")]
    completing = completed_words(os.environ) if program == PROGRAM else None
    selected = next((word for word in completing or words if not word.startswith("-")), None)
    try:
        if completing is not None:
            completion_init()
        app = build(selected, cluster_only=program == PLUGIN)
        status = app(args=words or ["--help"], prog_name=program, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:  # `apparate status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except typer.Exit as stop:
        return stop.exit_code
    except Exception as error:  # noqa: BLE001 - the outermost frame: whatever it is, the user gets one line
        if verbose:
            traceback.print_exc()
        message, status = explain(lacking(selected, error) if isinstance(error, ModuleNotFoundError) else error)
        for line in message.splitlines() or [""]:
            print(f"error: {line}", file=sys.stderr)
        return status


def completed_words(environ: Mapping[str, str]) -> list[str] | None:
    """Words after the program's name that a shell wants completed; None when it does not ask."""
    if COMPLETING not in environ:
        return None
    typed = environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS") or ""
    return typed.split()[1:]


def explain(error: Exception) -> tuple[str, int]:
    """What to tell the user about `error`, and the exit status."""
    if isinstance(error, CommandError):
        return str(error), error.status
    usage = getattr(error, "format_message", None)  # typer's own: unknown option, missing argument
    if usage is not None:
        return str(usage()), BAD_INPUT
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", BAD_INPUT
    if isinstance(error, ValueError) and type(error) is not ValueError:
        return str(error), BAD_INPUT  # Invalid...: the project's own, all with a message for people
    if isinstance(error, RuntimeError | ValueError | OSError):
        return str(error) or type(error).__name__, FAILED
    return f"unexpected {type(error).__name__}: {error} (-v shows where)", FAILED


def build(selected: str | None = None, *, everything: bool = False, cluster_only: bool = False) -> typer.Typer:
    """The command line with the code of `selected` loaded (or of everything, for the documentation)."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        help="Early exits for model serving.",
    )

    @app.callback()
    def _root(
        verbose: bool = typer.Option(
            False, "-v", "--verbose", help="Show where an error comes from; may stand anywhere."
        ),
    ) -> None:
        """Early exits for model serving: most answers sooner, accuracy kept while it runs."""

    for name, subcommand in SUBCOMMANDS.items():
        if cluster_only and not subcommand.cluster:
            continue
        real = everything or name == selected
        app.command(name, epilog=subcommand.exits)(load(name, subcommand) if real else _placeholder(subcommand))
    return app


def load(name: str, subcommand: Subcommand) -> Callable[..., Any]:
    """The function behind a subcommand. Raises CommandError when what it needs is not installed."""
    module, _, function = subcommand.target.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise lacking(name, error) from error
    return found


def lacking(name: str | None, error: ModuleNotFoundError) -> CommandError:
    """What a subcommand needs that is not installed, found when its module is loaded or when it runs."""
    extra = SUBCOMMANDS[name].extra if name in SUBCOMMANDS else ""
    hint = f"; run: pip install 'apparate[{extra}]'" if extra else ""
    return CommandError(f"`apparate {name}` needs the package {error.name}, not installed{hint}")


def _placeholder(subcommand: Subcommand) -> Callable[[], None]:
    def command() -> None:
        raise AssertionError("a placeholder only has help")

    command.__doc__ = subcommand.summary
    return command
