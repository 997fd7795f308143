"""`apparate check`: what is wrong with a document, its model or its data, and what an edit of it would cause."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Annotated

import typer

from apparate.cli.effects import Effect, effects
from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.cli.output import Format, Output, show
from apparate.cli.places import in_cluster
from apparate.cli.progress import working
from apparate.cli.tables import table
from apparate.cli.target import Context, Json, Kubeconfig, Namespace
from apparate.cli.target_cluster import ClusterTarget
from apparate.contract.document import Document, load_documents

COLUMNS = ("model", "check", "verdict", "field", "told")
WRONG = "wrong"
RESTART = "a running `apparate serve` goes on with the document that it started with: start it again after any edit"


def check_command(
    ctx: typer.Context,
    file: Annotated[list[Path], typer.Option("-f", "--file", help="YAML file with EarlyExitModels; may be repeated.")],
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    output: Output = Format.TABLE,
) -> int:
    """Read documents, load their models, run them on a few records, find where ramps may sit; changes nothing.

    Says field by field what has changed since a model was prepared, the code of its entrypoint included. With a cluster
    also what has changed since the document was applied there, and which of it prepares anew, replaces workers or does
    neither. On this machine a running `apparate serve` takes no edit: it goes on with what it read when it started.
    """
    documents = [document for one in file for document in load_documents(one)]
    rows: list[Json] = []
    cluster = in_cluster(ctx, namespace, context, kubeconfig)
    if cluster:
        target = ClusterTarget.connect(namespace, context, kubeconfig, everywhere=False)
        rows += [row for document in documents for row in compared(document, target, namespace)]
    with working("reading models and data") as tell:
        for document in documents:
            for row in checked(document):
                rows.append(row)
                tell(f"{row['model']}: after {row['check']}")
            if not cluster:
                rows.append(_row(document, "serving", "note", "", RESTART))
    show(rows, output, lambda: table("", COLUMNS, [tuple(one[name] for name in COLUMNS) for one in rows]))
    wrong = sum(one["verdict"] == WRONG for one in rows)
    if wrong:
        raise CommandError(f"{wrong} of {len(rows)} checks found something wrong", BAD_INPUT)
    return 0


def checked(document: Document) -> Iterator[Json]:
    """What preparing would stumble over, and what has changed since it was last done here."""
    if util.find_spec("torch") is None:
        told = "models are not loaded: torch is not installed; run: pip install 'apparate[worker]'"
        yield _row(document, "model", "skipped", "", told)
        return
    from apparate_worker.prepare.checking import check  # torch loads for seconds

    for one in check(document):
        yield _row(document, one.check, one.verdict.value, one.field, one.told)


def compared(document: Document, target: ClusterTarget, namespace: str) -> Iterator[Json]:
    """What has changed since a document was applied to a cluster, and what that causes. Raises CommandError."""
    meta = document.model.metadata
    key = f"{namespace or meta.namespace}/{meta.name}"
    live = target.find(key)
    if live is None:
        yield _row(document, "cluster", "note", "", f"{key} is not there yet: it would be prepared, then served")
        return
    found = list(effects(live, document.model))
    for one in found:
        verdict = "ok" if one.effect is Effect.NONE else "note"
        yield _row(document, "cluster", verdict, one.edit.field, f"{one.edit}: {one.effect}")
    if not found:
        yield _row(document, "cluster", "ok", "", f"the spec of {key} is as this document has it")


def _row(document: Document, *rest: str) -> Json:
    return dict(zip(COLUMNS, (document.model.metadata.name, *rest), strict=True))
