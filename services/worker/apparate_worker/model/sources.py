"""Models as they come: an nn.Module from an entrypoint, or a Hugging Face folder. Local files only, no pickles."""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apparate.contract.document import Document
from apparate.contract.resource import ModelSource, TensorSpec
from apparate_worker.model.errors import InvalidSource

CHUNK = 1 << 20


class NamedCall(nn.Module):
    """A model called with its inputs by position, in the order of `names`, that returns only its scores [N, C]."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], output: str, by_name: bool) -> None:
        super().__init__()
        self.model, self.names, self.output, self.by_name = model, names, output, by_name

    def forward(self, *inputs: Tensor) -> Tensor:
        """Scores [N, C]. Raises InvalidSource when the model's result holds no such tensor."""
        named = dict(zip(self.names, inputs, strict=True)) if self.by_name else {}
        result = self.model(**named) if self.by_name else self.model(*inputs)
        return _scores(result, self.output)


def _scores(result: Any, output: str) -> Tensor:
    if isinstance(result, Tensor):
        return result
    if isinstance(result, Mapping):
        found = result.get(output)
        if isinstance(found, Tensor):
            return found
        raise InvalidSource(f"the model's result has no tensor {output!r}, it has {', '.join(map(str, result))}")
    if isinstance(result, tuple | list) and result and isinstance(result[0], Tensor):
        return result[0]
    raise InvalidSource(f"the model returns a {type(result).__name__}, expected a tensor, a tuple or a mapping")


def load_source(document: Document) -> NamedCall:
    """The model of a document in evaluation mode, without gradients. Raises InvalidSource."""
    wanted = document.model.spec.model
    path = document.source
    if not path.exists():
        raise InvalidSource(f"model source {path} does not exist")
    check_sha256(path, wanted.sha256)
    inputs = wanted.inputs
    if not inputs:
        raise InvalidSource("spec.model.inputs is empty: name the model's inputs in the order of its forward")
    if str(document.base) not in sys.path:
        sys.path.append(str(document.base))  # an entrypoint may lie beside its document; last, so it hides nothing
    model = _from_folder(path) if wanted.format == "huggingface" else _from_entrypoint(wanted, path)
    model.eval().requires_grad_(False)
    names = tuple(spec.name for spec in inputs)
    return NamedCall(model, names, wanted.output, by_name=wanted.format == "huggingface").eval()


def source_sha256(path: Path) -> str:
    """SHA-256 of a file; of a folder, over the names and contents of its files."""
    digest = hashlib.sha256()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        if path.is_dir():
            digest.update(f"{file.relative_to(path)}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def check_sha256(path: Path, expected: str | None) -> None:
    """Refuse a source whose SHA-256 is not the expected one. Raises InvalidSource."""
    if expected is None:
        return
    found = source_sha256(path)
    if found != expected:
        raise InvalidSource(f"SHA-256 of {path} is {found}, the document expects {expected}")


def _from_entrypoint(wanted: ModelSource, path: Path) -> nn.Module:
    entrypoint = wanted.entrypoint or ""
    module_name, _, function_name = entrypoint.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidSource(f"entrypoint {entrypoint} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # it is anybody's code
        raise InvalidSource(f"entrypoint {entrypoint} cannot be imported: {type(error).__name__}: {error}") from error
    function = getattr(module, function_name, None)
    if function is None:
        raise InvalidSource(f"entrypoint {entrypoint}: module {module_name} has no {function_name}")
    try:
        model = function(path)
    except (Exception, SystemExit) as error:
        raise InvalidSource(f"entrypoint {entrypoint} failed on {path}: {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise InvalidSource(f"entrypoint {entrypoint} returned a {type(model).__name__}, expected an nn.Module")
    return model


def _from_folder(path: Path) -> nn.Module:
    """A classifier from a Hugging Face folder; only safetensors, only local files, no code from the folder."""
    config = path / "config.json"
    if not config.is_file():
        raise InvalidSource(f"{path} is not a Hugging Face folder: it has no config.json")
    if not list(path.glob("*.safetensors")):
        raise InvalidSource(f"{path} has no .safetensors weights; pickled weights are not read")
    try:
        architectures = json.loads(config.read_text(encoding="utf-8")).get("architectures") or []
    except (json.JSONDecodeError, AttributeError) as error:
        raise InvalidSource(f"{config} is not a JSON object: {error}") from None
    import transformers  # takes seconds, and only folders need it

    kinds: dict[str, Any] = {
        "SequenceClassification": transformers.AutoModelForSequenceClassification,
        "ImageClassification": transformers.AutoModelForImageClassification,
    }
    kind = next((k for k in kinds if any(str(a).endswith(k) for a in architectures)), None)
    if kind is None:
        raise InvalidSource(
            f"{config}: architectures is {architectures}, expected one that ends in {' or '.join(kinds)}"
        )
    try:
        model: nn.Module = kinds[kind].from_pretrained(
            str(path), local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidSource(f"{path} cannot be loaded: {error}") from error
    return model


DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "UINT8": torch.uint8,
    "INT8": torch.int8,
    "INT16": torch.int16,
    "INT32": torch.int32,
    "INT64": torch.int64,
    "FP16": torch.float16,
    "FP32": torch.float32,
    "FP64": torch.float64,
    "BF16": torch.bfloat16,
}


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """The torch dtype of one input. Raises InvalidSource for one that no model here can take."""
    if spec.datatype not in DTYPES:
        raise InvalidSource(f"input {spec.name} is {spec.datatype}, supported are {', '.join(DTYPES)}")
    return DTYPES[spec.datatype]
