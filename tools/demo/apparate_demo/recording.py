"""What workers reported during the run: read from the feedback stream, kept as a table, judged in hindsight."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import redis

from apparate.catalog import RampCatalog
from apparate.contract.resource import PlanStatus
from apparate.contract.stream import FIELD, PLAN_FIELD, feedback_key, plans_key
from apparate.contract.wire import decode_feedback
from apparate.feedback import FINAL, FeedbackBatch

Floats = npt.NDArray[np.float64]

PAGE = 2000  # entries read at once


class Recorder:
    """Follows the feedback stream of one model; `poll` between slices, before the stream is trimmed."""

    def __init__(self, url: str, model: str) -> None:
        self._redis = redis.Redis.from_url(url, socket_timeout=30)
        self._model, self._last = model, b"0"
        self.batches: list[FeedbackBatch] = []

    def poll(self) -> int:
        """Take what is new; how many records that were."""
        before = len(self.batches)
        while entries := self._entries(b"(" + self._last):
            self.batches += [decode_feedback(fields[FIELD]) for _, fields in entries]
            self._last = entries[-1][0]
        return sum(len(b) for b in self.batches[before:])

    def _entries(self, after: bytes) -> list[tuple[bytes, dict[bytes, bytes]]]:
        found: Any = self._redis.xrange(feedback_key(self._model), min=after, count=PAGE)
        return list(found)

    def plans(self) -> list[PlanStatus]:
        """Every plan there was, oldest first."""
        entries: Any = self._redis.xrange(plans_key(self._model))
        return [PlanStatus.model_validate_json(fields[PLAN_FIELD]) for _, fields in entries]

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


@dataclass(frozen=True, eq=False)
class Table:
    """Feedback of N requests over all R ramps of a catalog, in the documented format of recordings.

    err [N, R] float32, NaN where a ramp did not report;  top1 [N, R], -1 there;  final [N];  batch [N] padded size;
    exits [N] catalog index or -1;  revision [N]
    """

    err: npt.NDArray[np.float32]
    top1: npt.NDArray[np.int32]
    final: npt.NDArray[np.int32]
    batch: npt.NDArray[np.int32]
    exits: npt.NDArray[np.int32]
    revision: npt.NDArray[np.int64]

    @classmethod
    def of(cls, batches: Sequence[FeedbackBatch], ramps: int) -> Table:
        """The table of some batches, in their order."""
        n = sum(len(b) for b in batches)
        err, top1 = np.full((n, ramps), np.nan, np.float32), np.full((n, ramps), -1, np.int32)
        row = 0
        for batch in batches:
            rows = slice(row, row + len(batch))
            err[rows, list(batch.ramps)], top1[rows, list(batch.ramps)] = batch.errors, batch.labels
            row = rows.stop
        each = {"final": "final_labels", "exits": "exits"}
        columns = {k: np.concatenate([getattr(b, f) for b in batches] or [np.zeros(0)]) for k, f in each.items()}
        sizes = np.repeat([b.padded_size for b in batches], [len(b) for b in batches])
        revision = np.repeat([b.revision for b in batches], [len(b) for b in batches])
        return cls(
            err,
            top1,
            columns["final"].astype(np.int32),
            sizes.astype(np.int32),
            columns["exits"].astype(np.int32),
            revision.astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.final)

    def rows(self, chosen: Any) -> Table:
        """Some rows, by slice, index or mask."""
        return Table(*(getattr(self, f)[chosen] for f in ("err", "top1", "final", "batch", "exits", "revision")))

    def save(self, path: Path, catalog: RampCatalog) -> Path:
        """Write `path` (.npz) and the catalog beside it; where the catalog went."""
        arrays = {f: getattr(self, f) for f in ("err", "top1", "final", "batch", "exits", "revision")}
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)
        beside = path.with_name(path.stem + ".catalog.json")
        beside.write_text(json.dumps(catalog.to_json(), indent=1))
        return beside


def achieved_ms(table: Table, catalog: RampCatalog, active: dict[int, tuple[int, ...]]) -> Floats:
    """[N] milliseconds of the plain pass that each answer was early; negative where it paid ramps and left nowhere.

    active: the active ramps of each plan revision. Times are the catalog's, for the batch size of each record.
    """
    saved = np.zeros(len(table))
    rows = catalog.rows(table.batch)
    for revision in np.unique(table.revision):
        ramps = active.get(int(revision), ())
        chosen = np.flatnonzero(table.revision == revision)
        exits = table.exits[chosen]
        place = np.searchsorted(np.array(ramps), exits) if ramps else np.zeros(len(chosen), int)
        place = np.where(exits == FINAL, len(ramps), place)
        saved[chosen] = catalog.full_ms[rows[chosen]] - catalog.exit_ms(ramps)[rows[chosen], place]
    return saved


def server_times(batches: Sequence[FeedbackBatch]) -> dict[str, float]:
    """Median milliseconds inside the worker: arrival to release, the whole pass, and the batch sizes it ran."""
    released = np.concatenate([b.released_ms for b in batches] or [np.zeros(0)])
    if not len(released):
        return {}
    sizes = np.array([len(b) for b in batches])
    service = np.repeat([b.service_ms for b in batches], sizes)
    return {
        "released_p50_ms": float(np.median(released)),
        "released_p95_ms": float(np.percentile(released, 95)),
        "service_p50_ms": float(np.median(service)),
        "batch_mean": float(np.average(sizes, weights=sizes)),
        "passes": len(batches),
    }


@dataclass
class Guarding:
    """How often the workers' guards closed the ramps."""

    alarms: int = 0
    guarded_records: int = 0
    _closed: dict[str, bool] = field(default_factory=dict)

    def take(self, batches: Sequence[FeedbackBatch]) -> Guarding:
        """Count alarms (a worker going from open to closed) in batches in order; itself."""
        for batch in batches:
            self.alarms += batch.guarded and not self._closed.get(batch.worker, False)
            self._closed[batch.worker] = batch.guarded
            self.guarded_records += len(batch) * batch.guarded
        return self
