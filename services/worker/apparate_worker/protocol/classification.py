"""The classification extension: an output as its best classes, each written `score:index:name`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from apparate_worker.errors import InvalidRequest

Array = npt.NDArray[Any]
CLASSIFICATION = "classification"


def read_top(output: str, given: Any) -> int:
    """How many classes are asked for; more than there are is all of them, 0 is the output as it is.

    Raises InvalidRequest.
    """
    if type(given) is not int or given < 0:
        raise InvalidRequest(f"output {output!r:.80}: classification is {given!r:.40}, must be a number from 0")
    return given


def classify(scores: Array, top: int, names: Sequence[str]) -> Array:
    """[N, min(top, C)] bytes objects for class scores [N, C], best first; the first of equal ones first.

    A class without a name is written `score:index`. Scores have six decimals, as Triton writes them.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
    found = np.empty(order.shape, object)
    for row, best in enumerate(order.tolist()):
        found[row] = [_written(float(scores[row, index]), index, names) for index in best]
    return found


def _written(score: float, index: int, names: Sequence[str]) -> bytes:
    name = f":{names[index]}" if index < len(names) else ""
    return f"{score:f}:{index}{name}".encode()
