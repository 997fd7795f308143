"""One pass over the bootstrap data with the frozen model: pooled values at every site, and the model's own answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apparate_worker.model.cutting import Source
from apparate_worker.model.errors import InvalidBootstrap, UnsupportedModel
from apparate_worker.model.ramps import POOLINGS, RampShape, pooling_code
from apparate_worker.model.segments import Run, compile_source
from apparate_worker.prepare.bootstrap import BootstrapData

BATCH = 16
MOST_BYTES = 2**30  # of pooled values kept in memory; more records than fit are left out evenly
MOST_WIDTH = 2048  # values a pooling may hand to its linear layer
ANSWERS = 2  # fewest classes that a classifier chooses from


@dataclass(frozen=True, eq=False)
class Features:
    """What training reads, for N records.

    pooled   by site, then by pooling: [N, F] float32
    scores   [N, C] the model's output;  heads [N, H] its last layer's scores where the model has a tail, else scores
    """

    pooled: tuple[dict[RampShape, Tensor], ...]
    scores: Tensor
    heads: Tensor

    @property
    def answers(self) -> Tensor:
        """[N] the model's own answers."""
        return self.scores.argmax(1)


def candidates(activation: Tensor, mask: Tensor | None) -> list[RampShape]:
    """Poolings that suit a site, the cheapest first."""
    masked = mask is not None and activation.dim() == 3 and activation.shape[1] == mask.shape[1]
    found = []
    for pooling in POOLINGS[activation.dim()]:
        grid = int(pooling[-1]) if pooling.startswith("grid") else 1
        small = activation.dim() == 4 and min(activation.shape[2:]) < grid
        if not small and activation.shape[1] * grid * grid <= max(MOST_WIDTH, activation.shape[1]):
            found.append(RampShape(activation.dim(), pooling, masked))
    return found


def gather(
    model: Any,
    to_head: tuple[Run, Sequence[int]] | None,
    shapes: Sequence[Sequence[RampShape]],
    data: BootstrapData,
    device: torch.device,
    step: Callable[[float], None],
) -> Features:
    """Pooled values at every site for every record, in the records' order. `shapes`: by site, what to pool.

    Raises InvalidBootstrap when the model's answers are not finite or all the same.
    """
    pools = [{shape: _pool(shape, device) for shape in some} for some in shapes]
    kept: list[dict[RampShape, list[Tensor]]] = [{shape: [] for shape in some} for some in shapes]
    scores, heads, order = [], [], []
    with torch.inference_mode():
        for rows in data.batches(BATCH):
            state = model.start(data.take(rows, device))
            for r, pool in enumerate(pools):
                value = model.site(model.advance(r, state))
                for shape, run in pool.items():
                    kept[r][shape].append(run(value, model.mask(state)).cpu())
            if to_head is not None:
                run, sides = to_head
                heads.append(run(state.value, *[state.sides[i] for i in sides]).float().cpu())
            scores.append(model.output(model.advance(len(pools), state)).float().cpu())
            order.append(rows)
            step(sum(map(len, order)) / len(data))
    back = torch.from_numpy(np.argsort(np.concatenate(order)))
    answers = torch.cat(scores)[back].clone()
    _check(answers)
    pooled = tuple({shape: torch.cat(parts)[back].clone() for shape, parts in one.items()} for one in kept)
    return Features(pooled, answers, torch.cat(heads)[back].clone() if heads else answers)


def _pool(shape: RampShape, device: torch.device) -> Run:
    return compile_source(Source(pooling_code(shape), ()), {}, device)


def _check(scores: Tensor) -> None:
    if scores.dim() != 2 or scores.shape[1] < ANSWERS:
        raise UnsupportedModel(f"the model's output has shape {list(scores.shape)}, expected [N, classes], 2 or more")
    bad = (~scores.isfinite().all(1)).nonzero().flatten()
    if len(bad):
        raise InvalidBootstrap(
            f"the model's output is not finite for bootstrap record {int(bad[0])} ({len(bad)} in all)"
        )
    answers = scores.argmax(1)
    if bool((answers == answers[0]).all()):
        raise InvalidBootstrap(
            f"the model answers class {int(answers[0])} for all {len(answers)} bootstrap records: ramps need data with "
            "at least two different answers"
        )


def records_that_fit(widths: Iterable[int]) -> int:
    """How many records' pooled values fit into memory; `widths` of all poolings of all sites."""
    return max(MOST_BYTES // (4 * max(sum(widths), 1)), 1)
