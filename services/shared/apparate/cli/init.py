"""`apparate init`: a first document from a folder with a model; what it cannot see it asks, or is told by options."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
import yaml

from apparate.cli.errors import BAD_INPUT, CommandError
from apparate.contract.document import InvalidDocument, parse_documents
from apparate.contract.source import Datatype

INPUT = re.compile(r"(?P<name>[^:]+):(?P<datatype>[A-Z0-9]+):(?P<shape>(-1|\d+)(,(-1|\d+))*)")
MOST_CLASSES = 10_000  # that a document may name


def init_command(
    folder: Annotated[
        Path, typer.Argument(help="Folder with the model: a Hugging Face folder, or weights as .safetensors.")
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="Document to write. Default: model.yaml in the folder.", dir_okay=False)
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the model. Default: the folder's.")] = "",
    entrypoint: Annotated[
        str, typer.Option(help="package.module:function that takes the weights' path and returns the nn.Module.")
    ] = "",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="NAME:DATATYPE:SHAPE without the batch, as image:FP32:3,224,224; may be repeated."
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help=".npz with unlabelled inputs, one array for each input. Default: the folder's.")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=1e-6, max=0.5, help="Share of answers that may differ from the model's own.")
    ] = 0.01,
    ramp_overhead: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Share of a pass that its ramps may cost.")
    ] = 0.02,
    force: Annotated[bool, typer.Option("--force", help="Write over a document that is there.")] = False,
) -> None:
    """Write a first document for a model. Asks what it cannot see, on a terminal; elsewhere it names the option."""
    if not folder.is_dir():
        raise CommandError(f"{folder} is no folder", BAD_INPUT)
    to = to or folder / "model.yaml"
    if data is not None and not data.is_file():
        raise CommandError(f"{data} is no file", BAD_INPUT)
    if to.exists() and not force:
        raise CommandError(f"{to} is there already; --force writes over it", BAD_INPUT)
    model = _hugging_face(folder) if (folder / "config.json").is_file() else _torch(folder, entrypoint)
    if inputs:
        model["inputs"] = [_input(one) for one in inputs]
    if not model.get("inputs"):
        model["inputs"] = [_input(_asked("--input", "First input, as image:FP32:3,224,224"))]
    base = to.resolve().parent
    content: dict[str, Any] = {
        "apiVersion": "apparate.dev/v1alpha1",
        "kind": "EarlyExitModel",
        "metadata": {"name": name or _name(folder)},
        "spec": {
            "model": model | {"source": _relative(Path(model["source"]), base)},
            "bootstrap": {"data": _relative(data or _data(folder), base)},
            "budget": {"accuracyLoss": budget, "rampOverhead": ramp_overhead},
        },
    }
    text = yaml.safe_dump(content, sort_keys=False, default_flow_style=None, allow_unicode=True, width=100)
    try:
        parse_documents(text, origin=str(to), base=base)
    except InvalidDocument as error:
        raise CommandError(f"what was told makes no document: {error}", BAD_INPUT) from None
    to.write_text(text, encoding="utf-8")
    print(f"wrote {to}; next: apparate check -f {to}, then apparate serve -f {to}")


def _asked(option: str, question: str) -> str:
    """The answer of a person. Raises CommandError where nobody can answer."""
    if not sys.stdin.isatty():
        raise CommandError(f"{question}: say it by {option}", BAD_INPUT)
    return str(typer.prompt(question, err=True))


def _hugging_face(folder: Path) -> dict[str, Any]:
    """What the configuration of a Hugging Face folder tells. Raises CommandError."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        architectures = [str(one) for one in config.get("architectures") or []]
        labels = config.get("id2label") or {}
        classes = [str(labels[key]) for key in sorted(labels, key=int)][:MOST_CLASSES]
    except (ValueError, AttributeError, TypeError) as error:
        raise CommandError(f"{path} is no configuration of a model: {error}", BAD_INPUT) from None
    found: dict[str, Any] = {"source": str(folder), "format": "huggingface", "inputs": []}
    if any(one.endswith("ForSequenceClassification") for one in architectures):
        longest = min(int(config.get("max_position_embeddings") or 512), 1_048_576)
        names = ("input_ids", "attention_mask")
        found["inputs"] = [{"name": one, "datatype": "INT64", "shape": [-1], "maxSize": longest} for one in names]
    elif any(one.endswith("ForImageClassification") for one in architectures):
        size, channels = config.get("image_size"), config.get("num_channels") or 3
        height, width = size if isinstance(size, list) and len(size) == 2 else (size, size)
        if height:
            found["inputs"] = [{"name": "pixel_values", "datatype": "FP32", "shape": [channels, height, width]}]
    else:
        told = ", ".join(architectures) or "nothing"
        raise CommandError(
            f"{path}: architectures is {told}; served are classifiers of sequences and images", BAD_INPUT
        )
    return found | ({"classes": classes} if classes else {})


def _torch(folder: Path, entrypoint: str) -> dict[str, Any]:
    """Weights in a folder and the code that they belong to. Raises CommandError."""
    weights = sorted(folder.glob("*.safetensors"))
    if len(weights) > 1:
        raise CommandError(
            f"{folder} has {len(weights)} .safetensors files; keep one, or give its own folder", BAD_INPUT
        )
    if not weights and not entrypoint:
        raise CommandError(
            f"{folder} has neither config.json nor .safetensors weights; pickles are not read", BAD_INPUT
        )
    asked = entrypoint or _asked("--entrypoint", "package.module:function that makes the nn.Module of the weights")
    return {"source": str(weights[0] if weights else folder), "entrypoint": asked, "inputs": []}


def _input(text: str) -> dict[str, Any]:
    """One input of the model as a person writes it. Raises CommandError."""
    found = INPUT.fullmatch(text.strip())
    if found is None or found["datatype"] not in get_args(Datatype):
        kinds = ", ".join(get_args(Datatype))
        raise CommandError(f"input is {text!r}, must be NAME:DATATYPE:SHAPE with a datatype of {kinds}", BAD_INPUT)
    shape = [int(size) for size in found["shape"].split(",")]
    return {"name": found["name"], "datatype": found["datatype"], "shape": shape}


def _data(folder: Path) -> Path:
    """Bootstrap data beside the model. Raises CommandError."""
    there = sorted(folder.glob("*.npz"))
    if len(there) == 1:
        return there[0]
    names = f", {folder} has {', '.join(one.name for one in there)}" if there else ""
    found = Path(_asked("--data", f".npz with unlabelled inputs like those that will be asked for{names}"))
    if not found.is_file():
        raise CommandError(f"{found} is no file", BAD_INPUT)
    return found


def _name(folder: Path) -> str:
    """A name that Kubernetes takes."""
    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")[:50].strip("-") or "model"


def _relative(path: Path, base: Path) -> str:
    """A path as the document has it: from its own folder where it lies in there."""
    whole = path.resolve()
    return str(whole.relative_to(base)) if whole.is_relative_to(base) else str(whole)
