"""`apparate prepare`: ramps trained and latencies measured, before serving."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.cli.tables import table
from apparate.contract.document import Document, InvalidDocument, load_documents
from apparate.service.signals import end_on_sigterm

if TYPE_CHECKING:
    from apparate_worker.prepare.progress import Step

SOURCES = Path("/sources")
STAGES = {
    "fetching": "fetching sources",
    "sites": "finding sites",
    "backend": "choosing what runs it",
    "features": "running the model over the bootstrap data",
    "training": "training ramps",
    "choosing": "choosing ramps",
    "compiling": "compiling segments",
    "latencies": "measuring latencies",
    "storing": "storing",
    "waiting": "waiting",
    "ready": "ready",
}


def prepare_command(
    file: Annotated[
        list[Path] | None, typer.Option("-f", "--file", help="YAML file with EarlyExitModels; may be repeated.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Prepare again, even when nothing changed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each model when done.")] = False,
    from_object: Annotated[
        str, typer.Option("--object", help="NAMESPACE/NAME of an EarlyExitModel, for the Job in a cluster.")
    ] = "",
    revision: Annotated[str, typer.Option(help="With --object: the revision that is wanted.")] = "",
    store: Annotated[str, typer.Option(help="With --object: folder or s3://BUCKET/PREFIX of prepared models.")] = "",
    sources: Annotated[Path, typer.Option(help="With --object: where claims and images are mounted.")] = SOURCES,
    publish: Annotated[str, typer.Option(help="With --object: ConfigMap for progress and catalog.")] = "",
    keep: Annotated[list[str] | None, typer.Option(help="With --object: another revision that is in use.")] = None,
    kubeconfig: Annotated[str, typer.Option(help="With --object: kubeconfig file; default: the pod's token.")] = "",
) -> int:
    """Train and profile the ramps of a model, before serving. Stopped, it resumes after its last finished stage."""
    if from_object:
        if file or not revision or not store:
            raise CommandError("--object needs --revision and --store, and no --file", BAD_INPUT)
        order = {"object": from_object, "revision": revision, "store": store, "sources": sources}
        return _in_cluster(order | {"config_map": publish, "keep": tuple(keep or ())}, kubeconfig, force)
    if not file:
        raise CommandError("say what to prepare: -f FILE", BAD_INPUT)
    return _local(file, force, as_json)


def _local(file: Sequence[Path], force: bool, as_json: bool) -> int:
    from apparate_worker.model.errors import ModelError  # torch loads for seconds, and only this command needs it
    from apparate_worker.prepare import prepare
    from apparate_worker.prepare.choosing import nothing_exits

    for document in _documents(file):
        name = document.model.metadata.name
        began = time.monotonic()
        try:
            with _watcher(name) as watch:
                catalog = prepare(document, progress=watch, force=force)
        except ModelError as error:
            raise CommandError(f"{name}: {error}", BAD_INPUT) from error
        except OSError as error:
            raise CommandError(f"{name}: {error}", BAD_INPUT) from error
        if told := nothing_exits(document, catalog):
            _warn(name, told)
        if as_json:
            print(json.dumps(_summary(document, catalog, time.monotonic() - began)), flush=True)
        elif sys.stderr.isatty():
            _table(document, catalog)
    return 0


def _in_cluster(order: dict[str, Any], kubeconfig: str, force: bool) -> int:
    from apparate.service.kube import InvalidKubeconfig, client_of
    from apparate_worker.prepare.failures import PrepareFailure
    from apparate_worker.prepare.in_cluster import Order, prepare_in_cluster

    end_on_sigterm()  # what is done by then stays: the next attempt goes on from there
    name = str(order["object"])
    try:
        client = client_of(kubeconfig)
        catalog = prepare_in_cluster(
            client, Order(**order), os.environ, told=lambda step: _line(name, step), force=force
        )
    except InvalidKubeconfig as error:
        raise CommandError(str(error), BAD_INPUT) from error
    except PrepareFailure as failure:
        raise CommandError(f"{name}: {failure}", failure.status) from failure
    print(json.dumps({"model": name, "digest": catalog.digest, "ramps": catalog.ramps}), flush=True)
    return 0


def _documents(files: Sequence[Path]) -> list[Document]:
    try:
        return [document for file in files for document in load_documents(file)]
    except (InvalidDocument, OSError) as error:
        raise CommandError(str(error), BAD_INPUT) from error


def _summary(document: Document, catalog: Any, seconds: float) -> dict[str, Any]:
    return {
        "model": document.model.metadata.name,
        "folder": str(document.prepared),
        "digest": catalog.digest,
        "ramps": catalog.ramps,
        "layers": list(catalog.layers),
        "agreement": [round(ramp["agreement"], 4) for ramp in catalog.extra["ramps"]],
        "full_ms": [round(ms, 4) for ms in catalog.full_ms.tolist()],
        "seconds": round(seconds, 1),
    }


@contextmanager
def _watcher(name: str) -> Iterator[Callable[[Step], None]]:
    """A progress bar on a terminal, lines of JSON otherwise; both on stderr."""
    if not sys.stderr.isatty():
        yield lambda step: _line(name, step)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def watch(step: Step) -> None:
            if step.stage not in tasks:
                label = f"{name}: {STAGES.get(step.stage, step.stage)}"
                tasks[step.stage] = bars.add_task(label, total=1.0, note="")
            bars.update(tasks[step.stage], completed=step.share, note=step.message)

        yield watch


def _line(name: str, step: Step) -> None:
    """Only the begin and the end of a stage, and news: a log is read by people."""
    if step.share == 0.0 or step.message:
        print(json.dumps({"model": name} | step.to_json()), file=sys.stderr, flush=True)


def _warn(name: str, told: str) -> None:
    """What is no error, and still not what the user hopes for: in the form of the progress before it."""
    if sys.stderr.isatty():
        print(f"warning: {name}: {told}", file=sys.stderr)
    else:
        print(json.dumps({"model": name, "warning": told}), file=sys.stderr, flush=True)


def _table(document: Document, catalog: Any) -> None:
    numbers = ("ramp", "reached at", "cost", "agrees", "could leave at 1 % loss")
    rows = []
    for r, ramp in enumerate(catalog.extra["ramps"]):
        reached, cost = catalog.reach_ms[0, r], catalog.overhead_ms[0, r]
        share = f"{reached:.3f} ms ({reached / catalog.full_ms[0]:.0%})"
        leave = f"{ramp['exits_at_1_percent_loss']:.0%}"
        agrees = f"{ramp['agreement']:.1%}"
        rows.append((str(r), ramp["layer"], ramp["pooling"], share, f"{cost:.3f} ms", agrees, leave))
    title = f"{document.model.metadata.name}: {catalog.ramps} ramps in {document.prepared}"
    table(title, ("ramp", "layer", "pooling", *numbers[1:]), rows, right=numbers, to=sys.stderr)


def main() -> None:
    """The command on its own, with its errors in one line. Exits with its status."""
    app = typer.Typer(add_completion=False)
    app.command()(prepare_command)
    try:
        app(standalone_mode=False)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.status)
