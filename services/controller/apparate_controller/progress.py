"""How far one model's stream has been worked off, and the totals over all of it; survives the process in a hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from apparate_controller.positions import Positions

NOWHERE = "0-0"
_WORKER = "worker:"
_LAST_ID = "last_id"


@dataclass
class Totals:
    """Counted since the model's feedback was first read, over restarts of the controller."""

    batches: int = 0
    records: int = 0
    duplicates: int = 0
    """Batches that came again and were dropped."""
    lost: int = 0
    """Batches that never came: numbers missing in their worker's sequence."""
    refused: int = 0
    """Entries that could not be decoded, and batches of another catalog."""
    revision: int = 0
    """Newest plan revision that any worker reported."""


@dataclass
class Progress:
    """Position and totals of one model."""

    last_id: str = NOWHERE
    """Id of the newest stream entry that was worked off."""
    totals: Totals = field(default_factory=Totals)
    positions: Positions = field(default_factory=Positions)

    def advance(self, entry: str) -> None:
        """The entry with this id was worked off."""
        if stream_order(entry) > stream_order(self.last_id):
            self.last_id = entry

    def to_fields(self, workers: Mapping[str, str] | None = None) -> dict[str, str]:
        """Fields of the hash; with the positions of only some workers when they are given."""
        dumped = self.positions.dump() if workers is None else workers
        totals = {f.name: str(getattr(self.totals, f.name)) for f in fields(Totals)}
        return {_LAST_ID: self.last_id, **totals, **{_WORKER + w: text for w, text in dumped.items()}}

    @staticmethod
    def field_of(worker: str) -> str:
        """Name of the field that holds one worker's position."""
        return _WORKER + worker

    @classmethod
    def from_fields(cls, stored: Mapping[str, str]) -> Progress:
        """Progress from the hash. Raises ValueError that names a field which is not what this class writes."""
        totals = Totals()
        for f in fields(Totals):
            text = stored.get(f.name, "0")
            if not text.isdecimal():
                raise ValueError(f"{f.name} is {text!r}, must be a whole number")
            setattr(totals, f.name, int(text))
        last_id = stored.get(_LAST_ID, NOWHERE)
        stream_order(last_id)
        workers = {name.removeprefix(_WORKER): text for name, text in stored.items() if name.startswith(_WORKER)}
        return cls(last_id, totals, Positions.load(workers))


def stream_order(entry: str) -> tuple[int, int]:
    """What stream ids are ordered by. Raises ValueError for text that is no stream id."""
    milliseconds, _, number = entry.partition("-")
    try:
        return int(milliseconds), int(number or 0)
    except ValueError:
        raise ValueError(f"{entry!r} is no stream id") from None
