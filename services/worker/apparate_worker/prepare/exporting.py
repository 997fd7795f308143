"""A cut model as modules of torch again, for exporters; and as an ONNX graph whose values at the sites have names.

Only a preparation does this, on text that it has just made itself: here it is run as Python.
"""

from __future__ import annotations

import logging
import typing
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from apparate.contract.resource import TensorSpec
from apparate_worker.model.cutting import DEVICE, Cut, Source
from apparate_worker.model.errors import UnsupportedModel

if TYPE_CHECKING:
    from onnx import ModelProto

QUIET = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")  # what they say is of no use to who prepares a model


class WholePass(nn.Module):
    """The model of a cut; returns the value at every site, or only its scores."""

    def __init__(self, model: Cut, constants: Mapping[str, Tensor], device: torch.device, *, sites: bool) -> None:
        super().__init__()
        self._model, self._sites = model, sites
        self._prologue = _python(model.prologue, device) if model.prologue is not None else None
        self._segments = [_python(source, device) for source in model.segments]
        used = {name for source in (model.prologue, *model.segments) if source is not None for name in source.constants}
        for name in sorted(used):
            self.register_buffer(name, constants[name])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The values at the sites, and the scores [N, C] last."""
        sides = self._prologue(self, *inputs) if self._prologue is not None else ()
        value, found = inputs[0], []
        for source, run in zip(self._model.segments, self._segments, strict=True):
            value = run(self, value, *[sides[i] for i in source.sides])
            found.append(value)
        return tuple(found) if self._sites else (value,)


class OneSegment(nn.Module):
    """One segment of a cut: the value at a site and its side values -> the value at the next site.

    numbers: which arguments are numbers; they come as the sizes of empty tensors (`backends.as_tensors`).
    """

    def __init__(
        self, source: Source, constants: Mapping[str, Tensor], device: torch.device, numbers: Collection[int] = ()
    ) -> None:
        super().__init__()
        self._run, self._numbers = _python(source, device), frozenset(numbers)
        for name in source.constants:
            self.register_buffer(name, constants[name])

    def forward(self, *arguments: Tensor) -> Tensor:
        """The value at the next site."""
        given = [one.shape[0] if i in self._numbers else one for i, one in enumerate(arguments)]
        found: Tensor = self._run(self, *given)
        return found


def _python(source: Source, device: torch.device) -> Callable[..., Any]:
    names: dict[str, Any] = {"torch": torch, "Tensor": Tensor, "List": typing.List, "Optional": typing.Optional}  # noqa: UP006
    exec(source.code.replace(DEVICE, str(device)), names)
    found: Callable[..., Any] = names["forward"]
    return found


def program_of(module: nn.Module, example: Sequence[Any], specs: Sequence[TensorSpec]) -> ExportedProgram:
    """A whole pass, traced with a free batch and free dimensions where the inputs have them."""
    shapes = tuple({0: Dim.DYNAMIC} | {i + 1: Dim.DYNAMIC for i, n in enumerate(s.shape) if n == -1} for s in specs)
    with quiet_exporters(), torch.no_grad():
        return torch.export.export(module.eval(), tuple(example), dynamic_shapes=(shapes,), strict=False)


def to_onnx(
    model: Cut, constants: Mapping[str, Tensor], example: Sequence[Tensor], specs: Sequence[TensorSpec]
) -> ModelProto:
    """The graph of a model on the CPU, with a value named for each site. Raises UnsupportedModel with the reason."""
    from apparate_worker.model.onnx_graph import MOST_BYTES, OUTPUT, site_name

    size = sum(value.numel() * value.element_size() for value in constants.values())
    if size > MOST_BYTES:
        raise UnsupportedModel(f"weights of {size / 2**30:.1f} GB, an ONNX graph holds {MOST_BYTES / 2**30:.1f} GB")
    names = [*(site_name(r) for r in range(len(model.segments) - 1)), OUTPUT]
    try:
        program = program_of(WholePass(model, constants, torch.device("cpu"), sites=True), example, specs)
        with quiet_exporters():
            found = torch.onnx.export(
                program, dynamo=True, input_names=list(model.inputs), output_names=names, verbose=False
            )
    except Exception as error:  # exporters raise what they like
        raise UnsupportedModel(f"cannot be exported: {str(error).strip().splitlines()[0][:200]}") from error
    if found is None:
        raise UnsupportedModel("cannot be exported: the exporter gave nothing")
    return found.model_proto


@contextmanager
def quiet_exporters() -> Iterator[None]:
    """Without the exporters' notes."""
    loggers = [logging.getLogger(name) for name in QUIET]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)
