"""Tuning on a recording, without any process: what thresholds a method finds, and what they would have done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apparate.adaptation.certified import Tuned
from apparate.adaptation.hill_climb import hill_climb
from apparate.adaptation.thresholds import Method, tune
from apparate.catalog import RampCatalog
from apparate.contract.recording import InvalidRecording, Recording


@dataclass(frozen=True)
class Question:
    """What to tune for. Steps are the hill climb's; the paper's unless told otherwise."""

    method: Method = Method.CERTIFIED
    max_loss: float = 0.01
    confidence: float = 0.95
    first_step: float = 0.1
    least_step: float = 0.01


@dataclass(frozen=True)
class Answer:
    """Thresholds for some ramps of a catalog, on how many records, in how much time."""

    ramps: tuple[int, ...]
    tuned: Tuned
    skipped: int
    """Requests left out because not all of the ramps reported on them."""
    seconds: float
    """Time of the tuning alone."""

    def to_json(self) -> dict[str, Any]:
        """The documented JSON of `apparate replay`; all shares 0..1."""
        replay = self.tuned.replay
        return {
            "ramps": list(self.ramps),
            "thresholds": list(replay.thresholds),
            "records": replay.n,
            "skipped": self.skipped,
            "loss": replay.loss,
            "saving": replay.saving,
            "mean_ms": replay.mean_ms,
            "exit_rates": list(replay.exit_rates),
            "certified": self.tuned.certified,
            "upper_bound": self.tuned.upper_bound,
            "seconds": self.seconds,
        }


def replay_recording(
    recording: Recording, catalog: RampCatalog | None, question: Question, ramps: Sequence[int] | None = None
) -> Answer:
    """Tune the ramps of a recording, or only the given ones by catalog index, as if they alone had been active.

    catalog: by default the one in the recording. Raises InvalidRecording when recording, catalog and ramps do not
    go together, or no request has feedback of all the ramps.
    """
    catalog = catalog or recording.catalog
    if catalog is None:
        raise InvalidRecording("the recording has no catalog of its own: give one")
    indices = catalog_indices(recording, catalog)
    unknown = [r for r in ramps or () if r not in indices]
    if unknown:
        raise InvalidRecording(f"ramp {unknown[0]} is not recorded; there are {', '.join(map(str, indices))}")
    chosen = tuple(indices) if ramps is None else tuple(sorted(set(ramps)))
    records = recording.records([indices.index(r) for r in chosen])
    if not len(records):
        raise InvalidRecording(f"none of {len(recording)} requests has feedback of all ramps {list(chosen)}")
    started = time.perf_counter()
    if question.method is Method.HILL_CLIMB:
        tuned = Tuned(
            hill_climb(
                records,
                catalog,
                chosen,
                question.max_loss,
                first_step=question.first_step,
                least_step=question.least_step,
            ).tight
        )
    else:
        tuned = tune(
            records,
            catalog,
            chosen,
            max_loss=question.max_loss,
            method=question.method,
            confidence=question.confidence,
        )
    return Answer(chosen, tuned, len(recording) - len(records), time.perf_counter() - started)


def catalog_indices(recording: Recording, catalog: RampCatalog) -> list[int]:
    """The catalog index of each column: one for each ramp of the catalog, or those that the recording names."""
    columns = recording.err.shape[1]
    if columns == catalog.ramps:
        return list(range(columns))
    if recording.ramps is not None and recording.ramps[-1] < catalog.ramps:
        return list(recording.ramps)
    raise InvalidRecording(f"the recording has {columns} ramps, the catalog has {catalog.ramps}")
