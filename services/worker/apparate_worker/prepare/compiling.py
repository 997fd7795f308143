"""torch.compile ahead of time: each segment as native code in a file that workers load.

In a process of its own, which can be given a deadline, and whose memory is gone with it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.export import Dim

from apparate_worker.model.backends import as_tensors, compiled_name, machine_of, with_compiled
from apparate_worker.model.cutting import Cut, Source
from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.segments import assemble
from apparate_worker.model.store import load_cut, save_cut
from apparate_worker.prepare.bootstrap import BootstrapData
from apparate_worker.prepare.exporting import OneSegment, quiet_exporters
from apparate_worker.prepare.job import Job

TEXT, EXAMPLE = "compiling.json", "compiling.safetensors"
COMPILERS = ("g++", "clang++", "c++")
ERROR = re.compile(r"[\w.]*(Error|Exception|Violation)\w*: ")


def compiler(device: torch.device) -> str:
    """The C++ compiler that torch.compile would take, or empty; a GPU needs Triton besides."""
    if device.type == "cuda" and not _has_triton():
        return ""
    return next(
        (found for name in (os.environ.get("CXX", ""), *COMPILERS) if name and (found := shutil.which(name))), ""
    )


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return bool(has_triton())


def compile_segments(
    job: Job, data: BootstrapData, model: Cut, constants: Mapping[str, Tensor], within_s: float | None
) -> None:
    """Compile every segment of a cut into the working folder. Raises UnsupportedModel when that fails, or takes longer
    than `within_s`; None waits for as long as it takes."""
    save_cut(job.partial, model, TEXT)
    example = data.take(range(2), torch.device("cpu"))
    save_file({name: value.contiguous() for name, value in example.items()}, job.partial / EXAMPLE)
    threads = job.document.model.spec.serving.threads
    command = [sys.executable, "-m", __name__, str(job.partial), str(job.device), str(threads)]
    with tempfile.TemporaryDirectory(prefix="apparate-") as cache:
        environ = os.environ | {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        try:
            subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=within_s)
        except subprocess.TimeoutExpired:
            raise UnsupportedModel(f"torch.compile takes longer than {within_s:.0f} s") from None
        except subprocess.CalledProcessError as error:
            raise UnsupportedModel(f"torch.compile fails: {reason_in(error.stderr, error.returncode)}") from error


def reason_in(said: str, status: int) -> str:
    """Why a process failed, from what it said: its last line that names an error, before torch's advice."""
    lines = said.strip().splitlines() or [f"status {status}"]
    return next((line for line in reversed(lines) if ERROR.match(line)), lines[-1])[:200]


def load_whole(job: Job, model: Cut, constants: Mapping[str, Tensor]) -> Any:
    """What `compile_segments` has made of a cut, running. Raises UnsupportedModel."""
    return with_compiled(assemble(model, constants, job.device), job.partial, machine_of(job.device), job.device)


def main(folder: Path, device: torch.device, threads: int) -> None:
    """Compile the segments of the text in a working folder, each for the values that an example has there."""
    torch.set_num_threads(threads)
    text, constants = load_cut(folder, device, TEXT)
    running = assemble(text, constants, device)
    inputs = {name: value.to(device) for name, value in load_file(folder / EXAMPLE).items()}
    with torch.no_grad(), quiet_exporters():
        state = running.start(inputs)
        for k, source in enumerate(text.segments):
            program = segment_program(source, constants, (state.value.clone(), *[state.sides[i] for i in source.sides]))
            options = {"freezing": device.type == "cpu"}
            path = str(folder / compiled_name(k))
            torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=options)
            running.advance(k, state)


def segment_program(
    source: Source, constants: Mapping[str, Tensor], example: Sequence[Any]
) -> torch.export.ExportedProgram:
    """One segment for the arguments of an example, and for others of any size; it takes them `as_tensors`."""
    arguments = as_tensors(example)
    numbers = [i for i, value in enumerate(example) if type(value) is int]
    module = OneSegment(source, constants, arguments[0].device, numbers).eval()
    shapes = (tuple(_free(value) for value in arguments),)
    return torch.export.export(module, arguments, dynamic_shapes=shapes, strict=False)


def _free(value: Any) -> Any:
    """Every dimension of a tensor free where the code allows it."""
    return dict.fromkeys(range(value.dim()), Dim.AUTO) if isinstance(value, Tensor) else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), torch.device(sys.argv[2]), int(sys.argv[3]))
