"""Error scores of an output: how unsure it is, from 0 to 1. All take probabilities [N, C] that sum to 1."""

from __future__ import annotations

import numpy as np

from apparate.adaptation.exits import Floats


def max_probability_error(probabilities: Floats) -> Floats:
    """[N] 1 - the largest probability: the error score of classification ramps."""
    found: Floats = 1.0 - probabilities.max(axis=1)
    return found


def margin_error(probabilities: Floats) -> Floats:
    """[N] 1 - (largest - second largest probability): the error score of language models. Needs two classes."""
    top = np.sort(probabilities, axis=1)
    found: Floats = 1.0 - (top[:, -1] - top[:, -2])
    return found


def normalised_entropy(probabilities: Floats) -> Floats:
    """[N] entropy over its maximum, log C. Needs two classes."""
    positive = np.where(probabilities > 0, probabilities, 1.0)  # 0 * log 0 is 0
    found: Floats = -(probabilities * np.log(positive)).sum(axis=1) / np.log(probabilities.shape[1])
    return found
