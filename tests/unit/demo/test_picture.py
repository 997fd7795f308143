"""The picture is drawn for whole runs and for empty ones."""

from __future__ import annotations

import numpy as np
import pytest

from apparate.contract.resource import PlanStatus
from apparate.plan import Plan
from apparate_demo.picture import Story, draw
from apparate_demo.results import Answers

PNG = b"\x89PNG"


def answers(n: int, scale: float, seed: int) -> Answers:
    rng = np.random.default_rng(seed)
    took = rng.gamma(4, scale, n)
    labels = (np.random.default_rng(0).random(n) < 0.5).astype(int)
    if seed:
        labels = np.where(rng.random(n) < 0.006, 1 - labels, labels)
    return Answers(took, took, labels, rng.integers(-1, 2, n), np.repeat([1, 2, 3], [n // 3, n // 3, n - 2 * (n // 3)]))


@pytest.mark.parametrize("n", [0, 1, 5000])
def test_a_picture_is_drawn(tmp_path, n):
    plans = [
        PlanStatus.of(Plan.of(1, (0, 3), (0.0, 0.0))),
        PlanStatus.of(Plan.of(2, (0, 3), (0.02, 0.05))),
        PlanStatus.of(Plan.of(3, (1, 3), (0.04, 0.03))),
    ]
    layers = ["layers.3", "layers.6", "layers.9", "layers.12"]
    story = Story("Median 50 % sooner", "same traffic", answers(n, 2, 0), answers(n, 1, 1), 0.01, plans, layers, 60.0)
    draw(story, tmp_path / "sub" / "demo.png")
    assert (tmp_path / "sub" / "demo.png").read_bytes().startswith(PNG)
