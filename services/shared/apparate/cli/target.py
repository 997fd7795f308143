"""Where models are: behind a controller's address (local mode) or in a cluster; both use the same words."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Annotated, Any, Protocol

import typer

from apparate.contract.pause import WHO_MAX

Json = dict[str, Any]
DEFAULT_URL = "http://127.0.0.1:8070"  # where `apparate serve` puts the controller

Url = Annotated[
    str,
    typer.Option(
        envvar="APPARATE_CONTROLLER_URL",
        help=f"Address of the controller, as `apparate serve` prints it; {DEFAULT_URL} when nothing else is said.",
    ),
]
Namespace = Annotated[
    str, typer.Option("-n", "--namespace", help="Look in this namespace of a cluster; default: the context's.")
]
Everywhere = Annotated[bool, typer.Option("-A", "--all-namespaces", help="Look in all namespaces of a cluster.")]
Context = Annotated[str, typer.Option("--context", help="Use the cluster of this context of the kubeconfig.")]
Kubeconfig = Annotated[str, typer.Option("--kubeconfig", help="Use the cluster of this kubeconfig file.")]
Name = Annotated[str, typer.Argument(help="NAME or NAMESPACE/NAME of a model.")]


class Target(Protocol):
    """What the commands ask of either place. Keys are namespace/name; all raise CommandError."""

    def views(self) -> list[Json]:
        """Every model, as the controller's HTTP API describes one."""

    def view(self, name: str) -> Json:
        """The model NAME or NAMESPACE/NAME."""

    def plans(self, key: str) -> list[Json]:
        """Plans that were in force before, newest first."""

    def pause(self, key: str, paused: bool) -> None:
        """Have adaptation stand still, or go on."""

    def roll_back(self, key: str, revision: int) -> Json:
        """Put an earlier plan in force; the new plan."""

    def asked(self, key: str, question: str) -> Json:
        """What the controller itself answers about a model to a question, as `what-if?accuracyLoss=0.01`."""

    def fetched(self, key: str, question: str) -> bytes:
        """The same, for answers that are no JSON."""


def token() -> dict[str, str]:
    """The header that shows a controller its token, when this shell has it in APPARATE_CONTROLLER_TOKEN."""
    found = os.environ.get("APPARATE_CONTROLLER_TOKEN", "")
    return {"apparate-token": found} if found else {}


def asker() -> str:
    """Who runs this command, for the history of a model: the user and the machine."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in a container
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"[:WHO_MAX]


def key_of(one: Json) -> str:
    """namespace/name of a model as it is described."""
    return f"{one.get('namespace', 'default')}/{one.get('name', '')}"
