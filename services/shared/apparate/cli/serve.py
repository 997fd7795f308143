"""`apparate serve`: EarlyExitModel documents served on this machine."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from apparate.cli.errors import BAD_INPUT, FAILED, CommandError
from apparate.cli.planning import CONTROLLER_PORT, GRPC_FIELD, HTTP_FIELD, Served, key_of, wanted
from apparate.cli.ports import Ports, held
from apparate.cli.stack import LocalStack, StackFailed, on_signals
from apparate.cli.tables import table
from apparate.contract.document import load_documents

HttpPort = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help=f"Port of each model's first worker, instead of {HTTP_FIELD}; 0 takes free ones."
    ),
]
GrpcPort = Annotated[int | None, typer.Option(min=0, max=65535, help=f"The same for gRPC, instead of {GRPC_FIELD}.")]
ControllerPort = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help=f"Port of the controller. Default: {CONTROLLER_PORT}, or a free one."),
]


def serve_command(
    file: Annotated[list[Path], typer.Option("-f", "--file", help="YAML file with EarlyExitModels; may be repeated.")],
    redis_url: Annotated[
        str, typer.Option(help="Redis to use, redis://host:port/db; without it one is started and ends with us.")
    ] = "",
    prepare: Annotated[bool, typer.Option(help="Prepare models that are not prepared yet.")] = True,
    workers: Annotated[
        int | None, typer.Option(min=1, max=64, help="Workers of each model, instead of spec.serving.replicas.")
    ] = None,
    together: Annotated[
        bool, typer.Option("--together", help="Serve all models in one worker, or in each of --workers; from one file.")
    ] = False,
    http_port: HttpPort = None,
    grpc_port: GrpcPort = None,
    controller_port: ControllerPort = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the endpoints as one line of JSON.")] = False,
) -> int:
    """Serve models on this machine: workers, controller and Redis. Ctrl-C drains; a second one ends at once."""
    served = read(file)
    if together and len(file) > 1:
        raise CommandError("--together serves the models of one file: put the documents into one", BAD_INPUT)
    ports = Ports(http_port, grpc_port, controller_port)
    stack = LocalStack(served, redis_url=redis_url, workers=workers, together=together, ports=ports)
    check_redis(redis_url)
    with held(wanted(stack.planned, ports)):  # what cannot be served is told before minutes of preparing
        if prepare:
            prepare_all(served)
    restore = on_signals(stack)
    try:
        stack.start()
        show(stack, as_json=as_json)
        while not stack.wait(0.5):  # a bounded wait lets Python run the signal handlers
            pass
    except StackFailed as error:
        if stack.failed or not stack.stopping:  # a Ctrl-C while it starts is no failure
            raise CommandError(str(error), FAILED) from None
    finally:
        clean = stack.stop()
        restore()
    if stack.failed:
        raise CommandError(stack.failed, FAILED)
    return 0 if clean else FAILED


def read(files: Sequence[Path]) -> list[Served]:
    """Every document of `files`. Raises InvalidDocument, OSError, or CommandError when two have the same name."""
    found: list[Served] = []
    for file in files:
        if "," in str(file.resolve()):
            raise CommandError(f"{file}: a path with a comma cannot be served", BAD_INPUT)
        found += [Served(file, document) for document in load_documents(file)]
    by_key: dict[str, Path] = {}
    for one in found:
        key = key_of(one)
        if key in by_key:
            raise CommandError(f"{one.file}: {key} is there twice, first in {by_key[key]}", BAD_INPUT)
        by_key[key] = one.file
    return found


def check_redis(url: str) -> None:
    """Whether there is a Redis to start, or a URL that can be one. Raises CommandError, NoRedisServer."""
    from apparate.service.redis_client import connect
    from apparate.service.redis_server import find

    if not url:
        find()
        return
    try:
        connect(url)
    except ValueError as error:
        raise CommandError(f"--redis-url: {error}", BAD_INPUT) from None


def prepare_all(served: Sequence[Served]) -> None:
    """Prepare what is not prepared, in a process of its own: this one needs no torch. Raises CommandError."""
    for file in dict.fromkeys(one.file for one in served):
        status = subprocess.run(
            [sys.executable, "-m", "apparate.cli", "prepare", "-f", str(file)], stdout=sys.stderr, check=False
        ).returncode
        if status < 0:  # a crash of the model's own code, or killed for memory: it could not say so itself
            raise CommandError(f"{file}: preparing was ended by {signal.Signals(-status).name}", FAILED)
        if status:
            raise CommandError(f"{file}: preparing failed, see above", status if status == BAD_INPUT else FAILED)


def show(stack: LocalStack, *, as_json: bool) -> None:
    """Print where everything listens, and a request to try."""
    if as_json:
        endpoints = [vars(one) for one in stack.endpoints]
        print(json.dumps({"ready": True, "endpoints": endpoints, "controller": stack.controller_url}), flush=True)
        return
    rows = [(one.model, one.worker, f"http://{one.http}", one.grpc) for one in stack.endpoints]
    table("Serving", ("model", "worker", "HTTP", "gRPC"), rows)
    for one in stack.endpoints[:1]:
        print(f"try:    curl http://{one.http}/v2/models/{one.model.rpartition('/')[2]}")
    if stack.controller_url:
        print(f"watch:  apparate status --url {stack.controller_url}")
        print(f"page:   {stack.controller_url}/")
    print("Ctrl-C drains and ends.", flush=True)  # a pipe would keep it until the end
