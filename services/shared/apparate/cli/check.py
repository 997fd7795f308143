"""`apparate check`: what is wrong with a document, its model or its data, before anything is prepared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.cli.output import Format, Output, show
from apparate.cli.tables import table
from apparate.contract.document import load_documents


def check_command(
    file: Annotated[list[Path], typer.Option("-f", "--file", help="YAML file with EarlyExitModels; may be repeated.")],
    output: Output = Format.TABLE,
) -> int:
    """Read documents, load their models, run them on a few records, and find where ramps may sit; changes nothing."""
    documents = [document for one in file for document in load_documents(one)]
    from apparate_worker.prepare.checking import Verdict, check  # torch loads for seconds

    found = [
        {"model": document.model.metadata.name, "check": one.check, "verdict": one.verdict.value, "told": one.told}
        for document in documents
        for one in check(document)
    ]
    columns = ("model", "check", "verdict", "told")
    show(found, output, lambda: table("", columns, [tuple(one.values()) for one in found]))
    wrong = sum(one["verdict"] == Verdict.WRONG for one in found)
    if wrong:
        raise CommandError(f"{wrong} of {len(found)} checks found something wrong", BAD_INPUT)
    return 0
