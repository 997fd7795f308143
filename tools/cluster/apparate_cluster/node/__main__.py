"""`python -m apparate_cluster.node up|status|load|down [--folder DIR]`: a whole Kubernetes on this machine."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ..binaries import KUBERNETES
from ..build import BuildFailed
from .cluster import GPUS, NotUp, OneNodeCluster
from .folder import default_folder


def say(text: str) -> None:
    """One line of progress."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--folder", type=Path, help=f"where it lives (EEM_CLUSTER_FOLDER; now {default_folder()})")
    parser = argparse.ArgumentParser(prog="apparate_cluster.node", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", parents=[common], help="start it, and wait until it is ready")
    up.add_argument("--gpus", type=int, help=f"pretended GPUs of the node ({GPUS})")
    commands.add_parser("status", parents=[common], help="say whether it runs; the exit status is 1 when not")
    load = commands.add_parser("load", parents=[common], help="import archives of images")
    load.add_argument("archives", nargs="*", type=Path, metavar="IMAGE_TAR")
    down = commands.add_parser("down", parents=[common], help="end it; its images stay for the next time")
    down.add_argument("--all", action="store_true", help="remove its images and logs too")
    asked = parser.parse_args(arguments)
    cluster = OneNodeCluster(asked.folder, say=say)
    try:
        return _carry_out(cluster, asked)
    except (RuntimeError, OSError, BuildFailed) as error:
        say(f"error: {error}")
        return 1


def _carry_out(cluster: OneNodeCluster, asked: argparse.Namespace) -> int:
    started = time.monotonic()
    if asked.command == "up":
        fresh = cluster.up(gpus=asked.gpus)
        say(f"Kubernetes {KUBERNETES} is ready{f' after {time.monotonic() - started:.0f} s' if fresh else ' already'}")
        print(f"export KUBECONFIG={cluster.kubeconfig}\nexport PATH={cluster.bin}:$PATH")
        say("images: make images makes them, make cluster-load brings them here")
    elif asked.command == "load":
        if not asked.archives:
            raise FileNotFoundError("no image archives: make images makes them")
        cluster.load(*asked.archives)
    elif asked.command == "down":
        (cluster.forget if asked.all else cluster.down)()
        say("is down")
    else:
        return _status(cluster)
    return 0


def _status(cluster: OneNodeCluster) -> int:
    try:
        known = cluster.status()
    except NotUp as error:
        print(error)
        return 1
    for name, runs in known["running"].items():
        restarts = known["restarts"].get(name, 0)
        print(f"{name:24} {'runs' if runs else 'DOWN'}{f', restarted {restarts} times' if restarts else ''}")
    print(f"{known['gpus']} pretended GPUs; logs: {cluster.folder.log}\nexport KUBECONFIG={cluster.kubeconfig}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
