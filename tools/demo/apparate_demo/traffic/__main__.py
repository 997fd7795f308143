"""`python -m apparate_demo.traffic`: materials, send, compare, picture."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from apparate_demo.client import Target
from apparate_demo.traffic import compare as comparing
from apparate_demo.traffic import flow
from apparate_demo.traffic import picture as drawing
from apparate_demo.traffic.materials import Folder
from apparate_demo.traffic.materials import write as write_materials

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Traffic for a model in a cluster.")
From = Annotated[Path, typer.Option(help="Folder that `materials` wrote.")]
PROTOCOLS = ("http", "grpc")


@app.command()
def materials(to: Annotated[Path, typer.Option(help="Folder to write.")]) -> None:
    """Write weights, bootstrap data, frames, and the plain model's answers to them."""
    count = write_materials(Folder(to))
    print(f"{count} frames to send, and the plain model's answers to them, are in {to}")


@app.command()
def send(
    materials: From,
    model: Annotated[str, typer.Option(help="metadata.name of the EarlyExitModel.")],
    http: Annotated[str, typer.Option(help="HOST:PORT of its HTTP face.")] = "",
    grpc: Annotated[str, typer.Option(help="HOST:PORT of its gRPC face.")] = "",
    rate: Annotated[float, typer.Option(min=0.1, max=10_000, help="Requests a second, all protocols together.")] = 50.0,
    seconds: Annotated[float, typer.Option(min=1, max=86_400, help="How long; SIGTERM ends it sooner.")] = 3600.0,
) -> None:
    """Send frames in their order, compare each answer with the plain model's, print a line of JSON each second."""
    addresses = {name: at for name, at in zip(PROTOCOLS, (http, grpc), strict=True) if at}
    if not addresses:
        raise typer.BadParameter("give --http or --grpc, or both")
    frames, plain = Folder(materials).load()
    asyncio.run(flow.send(addresses, model, frames, plain, rate=rate, seconds=seconds, tell=flow.print_line))


@app.command()
def compare(
    materials: From,
    model: Annotated[str, typer.Option(help="metadata.name of the EarlyExitModel with exits, in this namespace.")],
    plain: Annotated[str, typer.Option(help="The same of one whose adaptation.policy is never.")],
    rate: Annotated[float, typer.Option(min=1, max=10_000, help="Requests a second.")] = 100.0,
    pairs: Annotated[int, typer.Option(min=2, max=10_000, help="Slices; each is sent to both.")] = 20,
    slice_seconds: Annotated[float, typer.Option(min=0.5, max=600, help="Length of one slice.")] = 2.0,
    http_port: Annotated[int, typer.Option(min=1, max=65535, help="HTTP port of both.")] = 8080,
    grpc_port: Annotated[int, typer.Option(min=1, max=65535, help="gRPC port of both.")] = 9000,
) -> None:
    """Send the same slices to a model with exits and to the plain one, in turn, and print medians and agreement."""
    ports = dict(zip(PROTOCOLS, (http_port, grpc_port), strict=True))

    def targets(name: str) -> list[Target]:  # its Service has its name
        return [Target(f"{name}:{ports[protocol]}", name, protocol) for protocol in PROTOCOLS]

    sides = {"exits": targets(model), "plain": targets(plain)}
    path = Folder(materials).traffic
    comparing.compare(sides, path, rate=rate, pairs=pairs, slice_s=slice_seconds, tell=flow.print_line)


@app.command()
def picture(
    story: Annotated[Path, typer.Argument(help="File with the lines of `send`, and with plans and marks.")],
    to: Annotated[Path, typer.Argument(help="PNG to write.")],
    title: Annotated[str, typer.Option(help="Above the picture.")] = "Early exits in a cluster",
    model: Annotated[str, typer.Option(help="metadata.name of the EarlyExitModel.")] = "person",
) -> None:
    """Draw response times, agreement, exits and plans of a run over time."""
    drawing.draw(drawing.Story.load(story), to, title=title, model=model)


if __name__ == "__main__":
    app()
