"""Ramps trained on pooled values: the frozen model has run once, so all that is left is a set of linear problems.

Each ramp learns the model's own answers (cross-entropy) and how sure it is of them (KL at temperature 2). Its pooling
and its weight decay are those whose answers on records held out are best; a temperature fitted on the same records
gives the scores of all ramps one meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax

from apparate_worker.model.ramps import RampShape
from apparate_worker.model.segments import Run
from apparate_worker.prepare.features import Features

DECAYS = (1e-2, 1e-3)  # of the standardised weights; measured, larger is worse everywhere, smaller overfits small data
SOFTNESS = 2.0  # temperature of the model's answers as targets
FOLDS, FOLDS_UP_TO = 5, 2000  # cross-validation where data is scarce; above it one part of it is held out
HELD_OUT = 0.2
CHECK_EVERY, PATIENCE = 5, 3  # passes between looks at the held-out loss, and looks without gain before stopping
SELECTION_RECORDS = 3000  # choosing a pooling needs no more
FLOOR = 1e-2  # least spread of a value, as a share of the mean spread: what never moves must not explode
OWN_SHARE = 0.3  # weight of the last layer's own classes beside the final ones, for a model with a tail


@dataclass(frozen=True, eq=False)
class TrainedRamp:
    """One trained ramp, standardisation folded in: scores = pooled @ weight.T + bias."""

    shape: RampShape
    weight: Tensor
    bias: Tensor
    temperature: float
    agreement: float
    """Share of held-out records on which it gives the model's answer."""
    exits: float
    """Share of held-out records that it could let go with 1 % of all answers wrong."""
    leaves: Tensor
    """[N] which held-out records those are; the records are the same for all ramps."""


@dataclass(frozen=True, eq=False)
class _Fit:
    weight: Tensor  # [F, H], of standardised values
    bias: Tensor
    held_out: Tensor  # [M, C] scores on the records that were not fitted on
    loss: float
    passes: int


@dataclass(frozen=True, eq=False)
class Targets:
    """The model's answers in both of its spaces: `heads` [N, H] before its tail and `scores` [N, C] after it."""

    heads: Tensor
    scores: Tensor
    tail: Run | None

    def take(self, rows: Tensor) -> Targets:
        """Those of some records."""
        return Targets(self.heads[rows], self.scores[rows], self.tail)

    def final(self, heads: Tensor) -> Tensor:
        """Scores [N, C] of scores [N, H]."""
        return heads if self.tail is None else self.tail(heads)

    def loss(self, heads: Tensor) -> Tensor:
        """How far some scores [N, H] are from the model's."""
        if self.tail is None:
            return _distance(heads, self.heads)
        own, final = _distance(heads, self.heads), _distance(self.final(heads), self.scores)
        return OWN_SHARE * own + (1 - OWN_SHARE) * final


def _distance(found: Tensor, wanted: Tensor) -> Tensor:
    soft = kl_div(
        log_softmax(found / SOFTNESS, 1), log_softmax(wanted / SOFTNESS, 1), reduction="batchmean", log_target=True
    )
    return 0.5 * cross_entropy(found, wanted.argmax(1)) + 0.5 * SOFTNESS**2 * soft


def train(
    features: Features,
    allowed: Sequence[Sequence[RampShape]],
    tail: Run | None,
    epochs: int,
    step: Callable[[float], None],
) -> list[TrainedRamp]:
    """One ramp for each site, of the best of its allowed shapes. Deterministic."""
    targets = Targets(features.heads, features.scores, tail)
    parts = split(len(features.scores))
    found = []
    for r, pooled in enumerate(features.pooled):
        found.append(_ramp({shape: pooled[shape] for shape in allowed[r]}, targets, parts, epochs))
        step((r + 1) / len(features.pooled))
    return found


def split(records: int) -> list[tuple[Tensor, Tensor]]:
    """(rows to fit on, rows held out), in random but fixed order: folds that cover all records, or a single part."""
    rows = torch.from_numpy(np.random.default_rng(0).permutation(records))
    if records <= FOLDS_UP_TO:
        folds = rows.tensor_split(FOLDS)
        return [(torch.cat([f for j, f in enumerate(folds) if j != i]), fold) for i, fold in enumerate(folds)]
    held = int(records * HELD_OUT)
    return [(rows[held:], rows[:held])]


def _ramp(
    pooled: Mapping[RampShape, Tensor], targets: Targets, parts: Sequence[tuple[Tensor, Tensor]], epochs: int
) -> TrainedRamp:
    fewer = [(fit[:SELECTION_RECORDS], held) for fit, held in parts]

    def held_out_fit(shape: RampShape, decay: float) -> tuple[float, RampShape, float, int, Tensor]:
        fits = [_fit(pooled[shape], targets, fit, held, decay, epochs) for fit, held in fewer]
        loss, passes = float(np.mean([f.loss for f in fits])), max(f.passes for f in fits)
        return loss, shape, decay, passes, torch.cat([f.held_out for f in fits])

    best = min((held_out_fit(shape, DECAYS[0]) for shape in pooled), key=lambda one: one[0])
    others = [held_out_fit(best[1], decay) for decay in DECAYS[1:]]
    _, shape, decay, passes, scores = min((best, *others), key=lambda one: one[0])
    held_out = torch.cat([held for _, held in parts])
    answers = targets.scores[held_out].argmax(1)
    temperature = fit_temperature(scores, answers)
    everything = torch.arange(len(targets.scores))
    values = pooled[shape]
    mean, spread = _spread(values)
    last = _fit(values, targets, everything, everything[:0], decay, passes)
    weight = (last.weight / spread[:, None]).T.contiguous()
    bias = last.bias - weight @ mean
    agree = scores.argmax(1) == answers
    leaves = leaves_at(scores / temperature, agree)
    exits = float(leaves.float().mean())
    return TrainedRamp(shape, weight, bias, temperature, float(agree.float().mean()), exits, leaves)


def _spread(values: Tensor) -> tuple[Tensor, Tensor]:
    mean, spread = values.mean(0), values.std(0)
    return mean, spread.clamp(min=max(float(spread.mean()) * FLOOR, 1e-12))


def _fit(values: Tensor, targets: Targets, fit: Tensor, held: Tensor, decay: float, epochs: int) -> _Fit:
    """The best linear layer after at most `epochs` passes; with records held out, stopped when they gain no more."""
    mean, spread = _spread(values[fit])
    x, wanted = (values[fit] - mean) / spread, targets.take(fit)
    y, check = (values[held] - mean) / spread, targets.take(held)
    weight = torch.zeros(x.shape[1], wanted.heads.shape[1], requires_grad=True)
    bias = torch.zeros(wanted.heads.shape[1], requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=CHECK_EVERY, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = wanted.loss(x @ weight + bias) + decay * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    best, best_loss, passes, waited = (weight.detach().clone(), bias.detach().clone()), float("inf"), 0, 0
    for done in range(CHECK_EVERY, max(epochs, CHECK_EVERY) + 1, CHECK_EVERY):
        optimizer.step(closure)  # type: ignore[no-untyped-call]
        now = (weight.detach().clone(), bias.detach().clone())
        if not len(held):
            best, passes = now, done
            continue
        with torch.no_grad():
            loss = float(check.loss(y @ weight + bias))
        waited = 0 if loss < best_loss else waited + 1
        if loss < best_loss:
            best, best_loss, passes = now, loss, done
        if waited >= PATIENCE:
            break
    with torch.no_grad():
        return _Fit(*best, targets.final(y @ best[0] + best[1]), best_loss, passes)


def fit_temperature(scores: Tensor, answers: Tensor) -> float:
    """The temperature 0.05..20 under which scores [N, C] are the best estimate of being right.

    N records without a mistake do not prove that there are none: targets are smoothed by two pseudo-records (Platt).
    """
    smoothing = 2 / (len(answers) + 2)
    grid = torch.logspace(float(np.log10(0.05)), float(np.log10(20)), 121)
    losses = torch.stack([cross_entropy(scores / t, answers, label_smoothing=smoothing) for t in grid])
    return float(grid[losses.argmin()])


def leaves_at(scores: Tensor, agree: Tensor, loss: float = 0.01) -> Tensor:
    """[N] which records could leave, the surest first, before more than `loss` of all records are wrong."""
    order = (1 - torch.softmax(scores, 1).amax(1)).argsort(stable=True)
    wrong = (~agree[order]).cumsum(0)
    found = torch.zeros(len(order), dtype=torch.bool)
    found[order] = wrong <= loss * len(order)
    return found
