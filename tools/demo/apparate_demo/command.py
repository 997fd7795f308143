"""`apparate demo`: prepare if needed, run the comparison, print the table, write the JSON and the picture."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from apparate.cli.errors import BAD_INPUT, FAILED, CommandError
from apparate.cli.planning import Served
from apparate.cli.serve import prepare_all
from apparate.cli.stack import StackFailed
from apparate.contract.serving import Serving
from apparate_demo import picture, report
from apparate_demo.client import ClientError
from apparate_demo.loaders import InvalidData
from apparate_demo.recording import Table
from apparate_demo.results import collect
from apparate_demo.run import Options, Run, compare
from apparate_demo.scenarios import SCENARIOS
from apparate_demo.scenarios.scenario import Scenario, Workspace, default_workdir, write

BACKENDS: tuple[str, ...] = get_args(Serving.model_fields["backend"].annotation)
MODES: tuple[str, ...] = get_args(Serving.model_fields["mode"].annotation)
PROTOCOLS = ("http", "grpc")
DEFAULT_SECONDS = ", ".join(f"{scenario.seconds:.0f} for {name}" for name, scenario in SCENARIOS.items())


def demo_command(
    model: Annotated[str, typer.Option(help=f"Scenario: {', '.join(SCENARIOS)}.")] = "vision",
    data: Annotated[
        Path | None,
        typer.Option(help="Traffic of your own: folder of images, video, .npz or JSON-lines; for cifar the folder."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(min=2, max=86_400, help=f"Seconds of traffic, half of it plain; else {DEFAULT_SECONDS}."),
    ] = None,
    load: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of the plain model's capacity.")] = 0.5,
    protocol: Annotated[str, typer.Option(help="How the client asks: http or grpc.")] = "http",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here; - for stdout.")] = None,
    plot: Annotated[Path, typer.Option(help="Write the picture here.")] = Path("out/demo.png"),
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no picture.")] = False,
    backend: Annotated[
        str,
        typer.Option(
            help=f"What runs the model: {', '.join(BACKENDS)}. auto takes the fastest; the shipped "
            "picture model then takes less time than a request costs, and nothing is left to save."
        ),
    ] = "eager",
    mode: Annotated[
        str,
        typer.Option(
            help=f"What becomes of answered rows: {', '.join(MODES)}. report runs them to the end, compact stops them."
        ),
    ] = "report",
    workdir: Annotated[Path | None, typer.Option(help="Where prepared models are kept between runs.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="Save the feedback of the run's second half as this .npz, for apparate replay.")
    ] = None,
) -> int:
    """Serve a real model plain and with early exits on the same traffic, and compare."""
    if model not in SCENARIOS:
        raise CommandError(f"--model is {model!r}, there are: {', '.join(SCENARIOS)}", BAD_INPUT)
    if protocol not in PROTOCOLS:
        raise CommandError(f"--protocol is {protocol!r}, there are: {', '.join(PROTOCOLS)}", BAD_INPUT)
    if backend not in BACKENDS:
        raise CommandError(f"--backend is {backend!r}, there are: {', '.join(BACKENDS)}", BAD_INPUT)
    if mode not in MODES:
        raise CommandError(f"--mode is {mode!r}, there are: {', '.join(MODES)}", BAD_INPUT)
    scenario = serving_by(SCENARIOS[model], backend=backend, mode=mode)
    console = Console(stderr=str(json_file) == "-", soft_wrap=True)

    def tell(text: str) -> None:
        console.print(f"[dim]{text}[/]", highlight=False)

    tell(f"reading the data of the scenario: {scenario.title}")
    try:
        workspace = write(scenario, workdir or default_workdir(model), data)
        prepare(workspace, tell)
        run = compare(workspace, Options(seconds or scenario.seconds, load, protocol), tell)
    except InvalidData as error:
        raise CommandError(str(error), BAD_INPUT) from None
    except (StackFailed, ClientError) as error:
        raise CommandError(f"{error} (log: {workspace.folder / 'serving.log'})", FAILED) from None
    figures = report.build(run, model=model, workspace=workspace)
    report.show(figures, console, title=scenario.title)
    if record is not None:
        keep(run, record, tell)
    if not no_plot:
        picture.draw(story(run, scenario, figures), plot)
        tell(f"picture: {plot}")
    write_json(figures, json_file, console)
    return FAILED if figures["errors"] else 0


def serving_by(scenario: Scenario, **serving: str) -> Scenario:
    """The scenario, with other values of `spec.serving`."""
    return replace(scenario, spec={**scenario.spec, "serving": {**scenario.spec.get("serving", {}), **serving}})


def prepare(workspace: Workspace, tell: Any) -> None:
    """Train and profile the ramps, unless done before; the plain model shares what is prepared."""
    tell("preparing: finding sites, training ramps, profiling (kept for the next run)")
    prepare_all([Served(workspace.document_path, workspace.document)])
    plain, shared = workspace.plain.prepared, workspace.document.prepared
    if plain.is_symlink() or plain.is_file():
        plain.unlink()
    elif plain.is_dir():
        shutil.rmtree(plain)
    plain.symlink_to(shared, target_is_directory=True)


def keep(run: Run, path: Path, tell: Any) -> None:
    """Save the second half of the feedback of the model with exits."""
    table = Table.of(run.feedback["exits"], run.catalog.ramps)
    beside = table.rows(slice(len(table) // 2, None)).save(path, run.catalog)
    tell(f"recording: apparate replay {path} --catalog {beside} --method certified --budget 0.01")


def story(run: Run, scenario: Scenario, figures: dict[str, Any]) -> picture.Story:
    """What the picture shows of a run."""
    saving = figures["saving_p50"] or 0.0
    return picture.Story(
        title=f"Median response {saving:.0%} sooner: {scenario.title}",
        subtitle=(
            f"Same traffic in alternating slices at {run.options.load:.0%} of the plain model's capacity "
            f"({run.capacity_rps:.0f}/s), {run.options.protocol}, mode {figures['mode']}, {figures['machine']}"
        ),
        plain=collect([p.plain for p in run.pairs]),
        exits=collect([p.exits for p in run.pairs]),
        budget=figures["budget"],
        plans=run.plans,
        layers=run.catalog.layers,
        seconds=sum(s.seconds for s in run.slices),
    )


def write_json(figures: dict[str, Any], path: Path | None, console: Console) -> None:
    """Write the figures to a file, or to stdout for `-`."""
    if path is None:
        return
    text = json.dumps(figures, indent=1, allow_nan=False)
    if str(path) == "-":
        print(text, flush=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    console.print(f"[dim]figures: {path}[/]", highlight=False)
