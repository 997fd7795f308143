"""Which place a command is about."""

from __future__ import annotations

import typer

from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.cli.main import PLUGIN
from apparate.cli.target import DEFAULT_URL, Target
from apparate.cli.target_cluster import ClusterTarget
from apparate.cli.target_local import LocalTarget


def choose(
    ctx: typer.Context, url: str, namespace: str, context: str, kubeconfig: str, everywhere: bool = False
) -> Target:
    """The cluster when `in_cluster`, else the controller at `url`. Raises CommandError."""
    if in_cluster(ctx, namespace, context, kubeconfig, everywhere):
        return ClusterTarget.connect(namespace, context, kubeconfig, everywhere)
    return LocalTarget(url or DEFAULT_URL)


def in_cluster(ctx: typer.Context, namespace: str, context: str, kubeconfig: str, everywhere: bool = False) -> bool:
    """Whether an option names a cluster, or none an address and the command is kubectl's plugin. Raises CommandError
    when they name both."""
    given = ctx.get_parameter_source("url")
    addressed = given is not None and given.name == "COMMANDLINE"
    named = bool(namespace or context or kubeconfig or everywhere)
    if named and addressed:
        raise CommandError("--url is for local mode: leave it away, or the options of a cluster", BAD_INPUT)
    return named or (ctx.find_root().info_name == PLUGIN and not addressed)
