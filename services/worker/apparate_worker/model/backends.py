"""What runs the segments of a prepared model: torch as it is, torch.compile ahead of time, or ONNX Runtime.

All keep one contract, that of `segments.SegmentedModel` and `ramps.RampHead`. A back end that cannot run here gives way
to torch as it is, which every prepared folder holds; the worker says so and goes on.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.ramps import RampHead
from apparate_worker.model.segments import Run, SegmentedModel

EAGER, COMPILE, ONNX = "eager", "compile", "onnx"
GRAPH, GRAPH_WEIGHTS = "model.onnx", "model.onnx.data"
CPU_FLAGS = Path("/proc/cpuinfo")
PACKAGES = ("onnxruntime", "onnx")


def has_onnx() -> bool:
    """Whether ONNX Runtime is installed."""
    return all(find_spec(name) is not None for name in PACKAGES)


def compiled_name(segment: int) -> str:
    """The file of one compiled segment."""
    return f"segment{segment}.pt2"


def files_of(backend: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the files that a back end adds to a prepared folder; `backend` is the catalog's."""
    if backend.get("name") == ONNX:
        return (GRAPH, GRAPH_WEIGHTS)
    if backend.get("name") == COMPILE:
        return tuple(compiled_name(k) for k in range(int(backend["segments"])))
    return ()


def machine_of(device: torch.device) -> dict[str, Any]:
    """What compiled code depends on: it may use whatever the processor or GPU that it was made on can do."""
    found: dict[str, Any] = {"torch": torch.__version__, "machine": platform.machine()}
    if device.type == "cuda":
        return found | {"gpu": torch.cuda.get_device_name(device)}
    return found | {"cpu_flags": sorted(_cpu_flags())}


def _cpu_flags() -> set[str]:
    try:
        lines = CPU_FLAGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return set(found.partition(":")[2].split())


def unlike(made_on: Mapping[str, Any], device: torch.device) -> str:
    """Why code that was compiled on another machine must not run here; empty when it may."""
    here = machine_of(device)
    for name in ("torch", "machine", "gpu"):
        if made_on.get(name) != here.get(name):
            return f"it was compiled for {name} {made_on.get(name)}, here it is {here.get(name)}"
    missing = set(made_on.get("cpu_flags", ())) - set(here.get("cpu_flags", ()))
    return f"this processor has no {', '.join(sorted(missing))}, which it was compiled with" if missing else ""


def with_compiled(model: SegmentedModel, folder: Path, made_on: Mapping[str, Any], device: torch.device) -> Any:
    """The model with its segments from their compiled files. Raises UnsupportedModel."""
    if reason := unlike(made_on, device):
        raise UnsupportedModel(reason)
    return replace(model, segments=tuple(load_compiled(folder / compiled_name(k)) for k in range(len(model.segments))))


def as_tensors(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Arguments of a segment as compiled code takes them: a number as the size of an empty tensor, for of tensors it
    leaves sizes free."""
    device = arguments[0].device
    return tuple(torch.empty((one, 0), device=device) if type(one) is int else one for one in arguments)


def load_compiled(path: Path) -> Run:
    """One compiled segment. It is native code: only of folders that nobody else can write. Raises UnsupportedModel."""
    import torch._inductor  # most workers never need it

    try:
        run = torch._inductor.aoti_load_package(str(path), run_single_threaded=True)
    except (RuntimeError, OSError, ValueError) as error:
        raise UnsupportedModel(f"{path} cannot be loaded: {str(error).strip().splitlines()[0]}") from error

    def segment(*arguments: Any) -> Any:
        found = run(*(as_tensors(arguments) if len(arguments) > 1 else arguments))
        return found[0] if isinstance(found, tuple | list) else found

    return segment


def in_onnx(
    folder: Path,
    sites: Sequence[str],
    heads: Sequence[RampHead],
    *,
    inputs: Sequence[str],
    mask_input: str | None,
    threads: int,
    reach_ms: Sequence[float] = (),
) -> tuple[Any, tuple[Any, ...]]:
    """The model of a folder's graph and its ramps. Raises UnsupportedModel."""
    try:
        from apparate_worker.model import onnx_graph
        from apparate_worker.model.onnx_model import OnnxHead, OnnxModel

        backbone = onnx_graph.with_ramps(onnx_graph.load(folder, sites), heads, mask_input)
        model = OnnxModel(
            backbone,
            inputs=inputs,
            mask_input=mask_input,
            ramps=len(heads),
            threads=threads,
            reach_ms=reach_ms,
        )
    except Exception as error:  # ONNX Runtime's own classes have RuntimeError and Exception for bases, by version
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedModel(f"ONNX Runtime cannot run {folder / GRAPH}: {words[0]}") from error
    return model, tuple(OnnxHead(head, r) for r, head in enumerate(heads))
