"""How far each worker's feedback has been read: repeats are dropped, gaps are counted. Pure, bounded, serialisable."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

FIRST_SEQ = 0  # of every worker's epoch
MAX_WORKERS = 2048  # twice the most replicas a model may have: those that left a rollout ago are forgotten first
MAX_EPOCHS = 4  # of one worker: entries of a restarted worker's predecessor may still be on the way
MAX_GAPS = 64  # of one epoch: missing ranges that may still be filled by a late entry


@dataclass(frozen=True)
class Sighting:
    """What one batch's position says."""

    fresh: bool
    """Whether the batch was not seen before."""
    lost: int = 0
    """Batches declared lost by it; -1 when it was itself declared lost before and came late."""


@dataclass
class _Epoch:
    following: int = FIRST_SEQ
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """[start, end) ranges that were declared lost, oldest first."""

    def observe(self, seq: int) -> Sighting:
        if seq >= self.following:
            lost = seq - self.following
            if lost:
                self.gaps = [*self.gaps, (self.following, seq)][-MAX_GAPS:]
            self.following = seq + 1
            return Sighting(True, lost)
        for i, (start, end) in enumerate(self.gaps):
            if start <= seq < end:
                rest = [(a, b) for a, b in ((start, seq), (seq + 1, end)) if a < b]
                self.gaps[i : i + 1] = rest
                return Sighting(True, -1)
        return Sighting(False)


class Positions:
    """The next sequence number expected of every `(worker, epoch)`.

    A batch counts once, however often it is delivered and in whatever order; the numbers that a later one skipped are
    declared lost, and taken back when they come after all. At most `max_workers` workers are remembered, the ones
    heard of longest ago are forgotten first; a batch of an epoch before the ones remembered counts as a repeat.
    """

    def __init__(self, max_workers: int = MAX_WORKERS) -> None:
        self._max_workers = max_workers
        self._workers: OrderedDict[str, dict[int, _Epoch]] = OrderedDict()
        self._changed: set[str] = set()
        self._forgotten: set[str] = set()

    def __len__(self) -> int:
        return len(self._workers)

    def observe(self, worker: str, epoch: int, seq: int) -> Sighting:
        """Take note of one batch."""
        epochs = self._workers.setdefault(worker, {})
        self._workers.move_to_end(worker)
        if epoch not in epochs:
            if len(epochs) >= MAX_EPOCHS and epoch < min(epochs):
                return Sighting(False)
            epochs[epoch] = _Epoch()
            while len(epochs) > MAX_EPOCHS:
                del epochs[min(epochs)]
        found = epochs[epoch].observe(seq)
        self._changed.add(worker)
        self._forgotten.discard(worker)
        while len(self._workers) > self._max_workers:
            old, _ = self._workers.popitem(last=False)
            self._changed.discard(old)
            self._forgotten.add(old)
        return found

    def changes(self) -> tuple[dict[str, str], set[str]]:
        """(worker -> its position as text, workers forgotten) since `settled`."""
        return self.dump(self._changed), set(self._forgotten)

    def settled(self, changed: Iterable[str], forgotten: Iterable[str]) -> None:
        """These changes are stored."""
        self._changed.difference_update(changed)
        self._forgotten.difference_update(forgotten)

    def dump(self, workers: Iterable[str] | None = None) -> dict[str, str]:
        """Worker -> its position as text; of all workers unless told which."""
        chosen = self._workers if workers is None else workers
        return {
            worker: json.dumps({str(epoch): [p.following, p.gaps] for epoch, p in self._workers[worker].items()})
            for worker in chosen
        }

    @classmethod
    def load(cls, dumped: Mapping[str, str], max_workers: int = MAX_WORKERS) -> Positions:
        """Positions from what `dump` gave. Raises ValueError for text it did not write."""
        positions = cls(max_workers)
        for worker, text in dumped.items():
            try:
                epochs = {
                    int(epoch): _Epoch(int(following), [(int(a), int(b)) for a, b in gaps])
                    for epoch, (following, gaps) in json.loads(text).items()
                }
            except (TypeError, ValueError, AttributeError) as error:
                raise ValueError(f"position of worker {worker} is {text!r}: {error}") from None
            positions._workers[worker] = epochs
        return positions
