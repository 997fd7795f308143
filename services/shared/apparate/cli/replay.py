"""`apparate replay`: tune thresholds on a recording and tell what they would have done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from apparate.adaptation.thresholds import Method
from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.cli.progress import working
from apparate.cli.tables import table


def replay_command(
    table: Annotated[Path, typer.Argument(help="Recording, .npz or Parquet.", show_default=False)],
    catalog: Annotated[
        Path | None,
        typer.Option(help="Catalog with the latencies, JSON. Default: the one in the recording.", show_default=False),
    ] = None,
    method: Annotated[Method, typer.Option(help="How thresholds are searched.")] = Method.CERTIFIED,
    budget: Annotated[float, typer.Option(help="Share of answers that may differ from the model's own, 0..1.")] = 0.01,
    confidence: Annotated[float, typer.Option(help="Confidence of the certificate, between 0 and 1.")] = 0.95,
    ramps: Annotated[
        str | None, typer.Option(help="Catalog indices of the active ramps, as 1,4. Default: all recorded.")
    ] = None,
    first_step: Annotated[float, typer.Option(help="First step of the hill climb; the paper's.")] = 0.1,
    least_step: Annotated[float, typer.Option(help="Least step of the hill climb; the paper's.")] = 0.01,
    to: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Write JSON to a file, or to the output with -.", show_default=False
        ),
    ] = None,
) -> None:
    """Tune thresholds on a recording, without serving."""
    from apparate.contract.recording import read_catalog, read_recording
    from apparate_controller.replay import Question, replay_recording

    _within("budget", budget, 0.0 <= budget <= 1.0, "0..1")
    _within("confidence", confidence, 0.0 < confidence < 1.0, "between 0 and 1")
    steps_fall = 0.0001 <= least_step <= first_step <= 1.0
    _within("first step", first_step, steps_fall, f"within 0.0001..1 and not below the least step {least_step}")
    question, active = Question(method, budget, confidence, first_step, least_step), _indices(ramps)
    with working(f"tuning on {table}"):
        known = read_catalog(catalog) if catalog is not None else None
        answer = replay_recording(read_recording(table), known, question, active).to_json()
    if to is None:
        _print_table(answer, method)
    elif to == "-":
        json.dump(answer, sys.stdout)
        sys.stdout.write("\n")
    else:
        Path(to).write_text(json.dumps(answer, indent=2) + "\n")


def _within(name: str, value: float, fine: bool, limit: str) -> None:
    if not fine:
        raise CommandError(f"{name} is {value}, must be {limit}", BAD_INPUT)


def _indices(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise CommandError(f"ramps are {text!r}, must be catalog indices as 1,4", BAD_INPUT) from None


def _print_table(answer: dict[str, Any], method: Method) -> None:
    leaving = zip([*answer["ramps"], "model"], [*answer["thresholds"], None], answer["exit_rates"], strict=True)
    rows = [(str(ramp), "" if at is None else f"{at:.4f}", f"{rate:.1%}") for ramp, at, rate in leaving]
    table("", ("ramp", "threshold", "leave here"), rows)
    skipped = f", {answer['skipped']} without feedback of all ramps left out" if answer["skipped"] else ""
    print(f"{method}: saving {answer['saving']:.1%}, loss {answer['loss']:.2%} on {answer['records']} records{skipped}")
    if answer["upper_bound"] is not None:
        print(f"certified: loss at most {answer['upper_bound']:.2%}")
    elif method is Method.CERTIFIED:
        print("not certified: too few records, so every ramp stays closed")
