"""torch.compile ahead of time: each segment as native code in a file that workers load.

In a process of its own, which can be given a deadline, and whose memory is gone with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.export import Dim

from apparate_worker.model.backends import compiled_name, machine_of, with_compiled
from apparate_worker.model.cutting import Cut
from apparate_worker.model.errors import UnsupportedModel
from apparate_worker.model.segments import assemble
from apparate_worker.model.store import load_cut, save_cut
from apparate_worker.prepare.bootstrap import BootstrapData
from apparate_worker.prepare.exporting import OneSegment, quiet_exporters
from apparate_worker.prepare.job import Job

TEXT, EXAMPLE = "compiling.json", "compiling.safetensors"
COMPILERS = ("g++", "clang++", "c++")


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
            words = error.stderr.strip().splitlines() or [f"status {error.returncode}"]
            raise UnsupportedModel(f"torch.compile fails: {words[-1][:200]}") from error


def load_whole(job: Job, model: Cut, constants: Mapping[str, Tensor]) -> Any:
    """What `compile_segments` has made of a cut, running. Raises UnsupportedModel."""
    return with_compiled(assemble(model, constants, job.device), job.partial, machine_of(job.device), job.device)


def main(folder: Path, device: torch.device, threads: int) -> None:
    """Compile the segments of the text in a working folder, each for the values that an example has there."""
    torch.set_num_threads(threads)
    text, constants = load_cut(folder, device, TEXT)
    running = assemble(text, constants, device)
    inputs = {name: value.to(device) for name, value in load_file(folder / EXAMPLE).items()}
    with torch.no_grad():
        state = running.start(inputs)
        for k, source in enumerate(text.segments):
            arguments = (state.value.clone(), *[state.sides[i] for i in source.sides])
            shapes = (tuple(_free(value) for value in arguments),)
            module = OneSegment(source, constants, device).eval()
            with quiet_exporters():
                program = torch.export.export(module, arguments, dynamic_shapes=shapes, strict=False)
                path = str(folder / compiled_name(k))
                options = {"freezing": device.type == "cpu"}
                torch._inductor.aoti_compile_and_package(program, package_path=path, inductor_configs=options)
            running.advance(k, state)


def _free(value: Any) -> Any:
    """Every dimension of a tensor free where the code allows it; numbers too."""
    if isinstance(value, Tensor):
        return dict.fromkeys(range(value.dim()), Dim.AUTO)
    return Dim.AUTO if isinstance(value, int) and not isinstance(value, bool) else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), torch.device(sys.argv[2]), int(sys.argv[3]))
