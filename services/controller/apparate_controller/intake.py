"""Stream entries in, decisions out: decodes, drops repeats, counts losses, feeds the session. No I/O."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from apparate.adaptation.policy import Decision, Observed, Reason, Search
from apparate.catalog import RampCatalog
from apparate.contract.wire import WireError, decode_feedback
from apparate.feedback import FeedbackBatch, FeedbackWindow, InvalidFeedback
from apparate.plan import Plan, newer, newest, revision_after
from apparate_controller.latencies import Latencies
from apparate_controller.progress import Progress
from apparate_controller.sources.redis_stream import Entry

TRACES_KEPT = 32  # that one decision's trace is linked to


class Session(Protocol):
    """What decides: apparate_controller.session.ModelSession."""

    plan: Plan
    window: FeedbackWindow
    observed: Observed
    paused: bool

    @property
    def adapts(self) -> bool:
        """Whether exits are meant to open: adaptation is neither paused nor forbidden."""

    def start(self) -> Decision | None:
        """The first plan, when none is in force for this catalog."""

    def feed(self, batch: FeedbackBatch, *, more: bool = False) -> Decision | None:
        """Take one batch of feedback; a decision when one is due, which may wait when more feedback is at hand."""

    def take_search(self) -> Search | None:
        """A search for other ramps that is wanted, once."""

    def propose(self, ramps: tuple[int, ...]) -> None:
        """Have the next decision consider this set of ramps."""

    def refill(self, batch: FeedbackBatch) -> object:
        """Take a batch that was decided on before a restart."""

    def observe(self) -> Observed:
        """What the window says of the plan in force, also while paused."""

    def take_up(self, plan: Plan) -> bool:
        """Go on from a plan that somebody else put in force; False when a new session has to."""

    def describe(self) -> dict[str, Any]:
        """Window, plan and last decisions as plain data."""


@dataclass
class Took:
    """What one `take` did, for metrics and logs."""

    decision: Decision | None = None
    ahead: int = 0
    """Revision of the next entry, when it is above the plan's: which plan is in force has to be seen to first."""
    decision_s: float = 0.0
    """Time that the session took over the batch it decided on."""
    batches: int = 0
    records: int = 0
    """Records that the session took; those of refused batches are not among them."""
    revision: int = 0
    """Newest plan revision of the records."""
    newest: str = ""
    """Id of the newest entry that was worked off."""
    duplicates: int = 0
    lost: int = 0
    late: int = 0
    """Batches that were declared lost before and came after all."""
    refused: dict[str, int] = field(default_factory=dict)
    """Entries that could not be used, by cause: undecodable, catalog, failed."""
    problem: str = ""
    """What was wrong with the last refused entry."""
    traces: tuple[str, ...] = ()
    """W3C traceparents of requests whose feedback led to the decision."""
    failure: Exception | None = None
    """What the session raised, if it did; a fault of ours."""

    def refuse(self, cause: str, problem: str) -> None:
        """Count one entry that could not be used."""
        self.refused[cause] = self.refused.get(cause, 0) + 1
        self.problem = problem


class Intake:
    """Works entries off for one session and keeps the progress. Owned by the model's thread, one call at a time."""

    def __init__(self, model: str, catalog: RampCatalog, session: Session, progress: Progress) -> None:
        self.session, self.progress = session, progress
        self.latencies = Latencies()
        self._traces: deque[str] = deque(maxlen=TRACES_KEPT)
        self._model, self._catalog = model, catalog
        self.uncommitted: dict[str, None] = {}
        """Ids of entries that were worked off, and whose ack is not known to be done."""

    def take(self, entries: deque[Entry]) -> Took:
        """Work entries off from the left, up to and with the first that a decision is taken on.

        Ends before feedback of a newer plan than the session's: somebody else's, or one that was lost.
        """
        took = Took()
        while entries and took.decision is None:
            entry = entries[0]
            if entry.id not in self.uncommitted:  # else: given out again after a reconnect
                batch = self._decode(entry, took)
                if batch is not None and newer(batch.revision, self.session.plan.revision):
                    took.ahead = batch.revision
                    break
                if batch is not None:
                    took.decision = self._count_and_feed(batch, took, more=len(entries) > 1)
                self.uncommitted[entry.id] = None
                self.progress.advance(entry.id)
                took.newest = entry.id
            entries.popleft()
        self.progress.totals.refused += sum(took.refused.values())
        return took

    def _count_and_feed(self, batch: FeedbackBatch, took: Took, *, more: bool) -> Decision | None:
        totals = self.progress.totals
        seen = self.progress.positions.observe(batch.worker, batch.epoch, batch.seq)
        took.lost += max(seen.lost, 0)
        took.late += max(-seen.lost, 0)
        totals.lost += seen.lost
        if not seen.fresh:
            took.duplicates += 1
            totals.duplicates += 1
            return None
        took.batches += 1
        totals.batches += 1
        totals.revision = newest(totals.revision, batch.revision)  # workers ran it, whatever comes of the batch
        return self._feed(batch, took, more=more)

    def _decode(self, entry: Entry, took: Took) -> FeedbackBatch | None:
        if entry.payload is None:
            return None  # trimmed: the gap in its worker's numbers counts it
        try:
            batch = decode_feedback(entry.payload)
        except WireError as error:
            took.refuse("undecodable", f"entry {entry.id}: {error}")
            return None
        if batch.model and batch.model != self._model:
            took.refuse("undecodable", f"entry {entry.id} is of model {batch.model}")
            return None
        return batch

    def _feed(self, batch: FeedbackBatch, took: Took, *, more: bool) -> Decision | None:
        which = f"batch {batch.seq} of {batch.worker}"
        if batch.catalog and batch.catalog != self._catalog.digest:
            took.refuse("catalog", f"{which} is of catalog {batch.catalog}, not {self._catalog.digest}")
            return None
        started = time.perf_counter()
        try:
            decision = self.session.feed(batch, more=more)
        except InvalidFeedback as error:
            took.refuse("undecodable", f"{which}: {error}")
            return None
        except Exception as error:  # noqa: BLE001 - redelivered, it would stop the model for good
            took.refuse("failed", f"{which}: {type(error).__name__}: {error}")
            took.failure = error
            return None
        self.latencies.add(batch)
        took.records += len(batch)
        took.revision = newest(took.revision, batch.revision)
        self.progress.totals.records += len(batch)
        if batch.trace:
            self._traces.append(batch.trace)
        if decision is not None:
            took.decision_s = time.perf_counter() - started
            took.traces = tuple(self._traces)
            self._traces.clear()
        return decision

    def renumber(self, seen: int) -> Decision:
        """Put the same plan in force under a revision above `seen`, the newest that workers have run."""
        old = self.session.plan
        self.session.plan = replace(old, revision=revision_after(seen, old.revision))
        new = self.session.plan.revision
        message = f"workers have run revision {seen}, so plan revision {old.revision} goes on as {new}"
        return Decision(Reason.STARTED, message, self.session.plan)

    def recall(self, newest_first: Iterable[Entry], into: list[FeedbackBatch]) -> bool:
        """Add entries that were worked off before to `into`; whether they fill the window."""
        known = {(batch.worker, batch.epoch, batch.seq) for batch in into}
        for entry in newest_first:
            batch = self._decode(entry, Took())
            if batch is None or (batch.worker, batch.epoch, batch.seq) in known:
                continue
            known.add((batch.worker, batch.epoch, batch.seq))
            if not batch.catalog or batch.catalog == self._catalog.digest:
                into.append(batch)
        return sum(map(len, into)) >= self.session.window.size

    def refill(self, newest_first: Sequence[FeedbackBatch]) -> int:
        """Fill the session's window with batches that `recall` found; how many records they are."""
        for batch in reversed(newest_first):
            with contextlib.suppress(InvalidFeedback):  # refused then as now
                self.session.refill(batch)
        return sum(map(len, newest_first))
