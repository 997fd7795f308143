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
    """The cluster when the command is kubectl's plugin or an option names one, else the controller at `url`."""
    in_cluster = bool(namespace or context or kubeconfig or everywhere)
    if ctx.find_root().info_name == PLUGIN or in_cluster:
        given = ctx.get_parameter_source("url")
        if in_cluster and given is not None and given.name == "COMMANDLINE":
            raise CommandError("--url is for local mode: leave it away, or the options of a cluster", BAD_INPUT)
        return ClusterTarget.connect(namespace, context, kubeconfig, everywhere)
    return LocalTarget(url or DEFAULT_URL)
