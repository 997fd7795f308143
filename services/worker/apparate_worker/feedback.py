"""What a pass did becomes metrics and one stream entry, in threads of their own. Serving never waits for this.

The reporting thread evaluates shadow ramps, encodes and counts; the sending thread talks to Redis. Both queues are
bounded and drop the oldest; whatever is dropped is counted, and shows as a gap in `seq`.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError
from redis.retry import Retry

from apparate.contract.stream import FEEDBACK_MAX_ENTRIES, FIELD, KEY_TTL_S
from apparate.contract.wire import encode_feedback
from apparate.feedback import FeedbackBatch
from apparate.service.redis_client import UNREACHABLE, failing
from apparate.service.telemetry import Faults, Sparsely, get_logger
from apparate_worker.passes import Pass
from apparate_worker.release import scores
from apparate_worker.tracing import trace_of

Array = npt.NDArray[Any]
log = get_logger(__name__)

LINGER_S = 0.025  # entries of this long go in one round trip, and cost the controller one turn; a decision has 50 ms
REPORTS_MAX = 512  # passes that may wait for the reporting thread; with shadows one can hold 100 KB
ENTRIES_MAX = 4096  # encoded entries that may wait for Redis: two minutes at 32 passes/s
PIPELINE_MAX = 256  # entries of one round trip
SOCKET_TIMEOUT_S = 2.0
BACKOFF_S = (0.05, 1.0)  # first and longest pause between attempts, so feedback resumes soon after Redis does
EXPIRE_EVERY_S = 60.0  # renewing costs a command; a wiped stream has its expiry again within a minute


@dataclass(frozen=True)
class Identity:
    """Who reports: the part of every entry that does not change."""

    model: str
    worker: str
    epoch: int
    catalog: str


class RedisSender:
    """Puts encoded entries into a stream from its own thread; Redis may be slow, full, read-only or gone.

    Entries whose reply was lost are sent again: the consumer knows them by (worker, epoch, seq).
    """

    def __init__(self, url: str, key: str, *, max_entries: int = FEEDBACK_MAX_ENTRIES) -> None:
        self._client = redis.Redis.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
        self._key, self._max_entries = key, max_entries
        self._changed = threading.Condition()
        self._entries: deque[bytes] = deque()
        self._stopping = False
        self._renewed = float("-inf")
        self._refusals = Sparsely()
        self.sent = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._main, name="feedback-sender", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def offer(self, entries: Sequence[bytes]) -> None:
        """Queue entries, dropping the oldest ones when too many wait."""
        with self._changed:
            self._entries.extend(entries)
            self._shed()
            self._changed.notify()

    def stop(self, within_s: float) -> None:
        """Send what waits, once, and end; what cannot be sent in time is dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(within_s)

    def _shed(self) -> None:
        while len(self._entries) > ENTRIES_MAX:
            self._entries.popleft()
            self.dropped += 1

    def _main(self) -> None:
        failures, said = 0, ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._entries or self._stopping)
                if not self._entries:
                    break
                entries = [self._entries.popleft() for _ in range(min(PIPELINE_MAX, len(self._entries)))]
            try:
                self._send(entries)
                if failures:
                    log.info("feedback flows again", dropped=self.dropped)
                failures, said = 0, ""
            except UNREACHABLE as error:
                if (words := failing(error).words) != said:
                    log.warning("feedback cannot be sent; serving goes on", error=words)
                said = words
                failures += 1
                self._renewed = float("-inf")
                if not self._wait_to_retry(entries, failures):
                    break
        self._client.close()

    def _send(self, entries: Sequence[bytes]) -> None:
        """One round trip. Raises RedisError or OSError when it is unknown what arrived."""
        pipeline = self._client.pipeline(transaction=False)
        for entry in entries:
            pipeline.xadd(self._key, {FIELD: entry}, maxlen=self._max_entries, approximate=True)
        now = time.monotonic()
        if renew := now - self._renewed > EXPIRE_EVERY_S:
            pipeline.expire(self._key, KEY_TTL_S)
        replies = pipeline.execute(raise_on_error=False)[: len(entries)]
        refused = [reply for reply in replies if isinstance(reply, Exception)]
        if refused and isinstance(refused[0], BusyLoadingError):
            raise refused[0]
        self.sent += len(entries) - len(refused)
        self.dropped += len(refused)
        if refused:  # out of memory, read-only: these are lost, and a new connection may find another server
            if (held := self._refusals()) is not None:
                words = failing(refused[0]).words
                log.warning("Redis refused feedback", entries=len(refused), error=words, held_back=held)
            self._client.connection_pool.disconnect()
            time.sleep(BACKOFF_S[0])
        elif renew:
            self._renewed = now

    def _wait_to_retry(self, entries: Sequence[bytes], failures: int) -> bool:
        """Keep the entries for the next attempt; False when there is none because the worker stops."""
        with self._changed:
            if self._stopping:
                self.dropped += len(entries) + len(self._entries)
                self._entries.clear()
                return False
            self._entries.extendleft(reversed(entries))
            self._shed()
            first, longest = BACKOFF_S
            pause_s = min(longest, first * 2 ** min(failures - 1, 10)) * random.uniform(0.5, 1.0)
            self._changed.wait_for(lambda: self._stopping, pause_s)
        return True


class Reporter:
    """Takes the report of every pass from the device thread; see the module.

    heads: by ramp, pooled vectors [N, F] -> class scores [N, C], on the host. on_passes: counts passes, in this thread.
    early_share: share of passes with shadows until an exit has been open, if that is more than shadow_share.
    """

    def __init__(
        self,
        identity: Identity,
        heads: Sequence[Callable[[Array], Array]],
        *,
        shadow_share: float,
        early_share: float = 1.0,
        sender: RedisSender | None,
        on_passes: Callable[[Sequence[Pass]], None] = lambda _: None,
    ) -> None:
        self._identity, self._heads, self._sender, self._on_passes = identity, heads, sender, on_passes
        self.shadow_share = shadow_share
        """Share of passes with shadows. Assigned from any thread."""
        self._early_share = early_share
        self.traced = False
        """Whether requests may be traced: then feedback names one of them."""
        # A draw for every pass, so that no rhythm of the traffic can keep some requests from ever being looked at.
        self._draw = random.Random(identity.epoch)
        # Without a lock, and with one wake-up for all the passes of a linger: the device thread pays for each.
        self._reports: deque[tuple[int, Pass]] = deque()
        self._some, self._stopping = threading.Event(), threading.Event()
        self._seq = 0
        self._faults = Faults(log)
        self.dropped = 0
        self._thread = threading.Thread(target=self._main, name="feedback", daemon=True)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        if self._sender is not None:
            self._sender.start()

    def wants_shadows(self, *, opened: bool) -> bool:
        """Whether the next pass keeps what ramps that are switched off would need. Device thread only."""
        if self._sender is None or not self.shadow_share:
            return False
        share = self.shadow_share if opened else max(self.shadow_share, self._early_share)
        return self._draw.random() < share

    def offer(self, done: Pass) -> None:
        """Take the report of a pass, dropping the oldest one when too many wait. Device thread only.

        A pass of which not all rows have reached the end is counted, but is no feedback: those that have are the hard
        ones.
        """
        self._reports.append((self._seq, done))
        self._seq += done.whole
        if len(self._reports) > REPORTS_MAX:
            with contextlib.suppress(IndexError):  # the reporting thread was faster
                self._reports.popleft()
                self.dropped += 1
        if not self._some.is_set():
            self._some.set()

    def stop(self, within_s: float) -> None:
        """Report and send what waits, then end."""
        give_up = time.monotonic() + within_s
        self._stopping.set()
        self._some.set()
        self._thread.join(within_s)
        if self._sender is not None:
            self._sender.stop(max(0.0, give_up - time.monotonic()))

    def _main(self) -> None:
        np.seterr(all="ignore")
        stopping = False
        while not stopping:
            self._some.wait()
            stopping = self._stopping.wait(LINGER_S)
            self._some.clear()  # before the look, so that no report can be forgotten
            reports = [self._reports.popleft() for _ in range(len(self._reports))]
            try:
                self._on_passes([done for _, done in reports])
                if self._sender is not None and reports:
                    self._sender.offer([encode_feedback(self._batch(seq, done)) for seq, done in reports if done.whole])
            except Exception as error:  # noqa: BLE001 - told with its traceback; feedback ends with no pass
                self.dropped += len(reports)
                self._faults("feedback could not be made", error)

    def _batch(self, seq: int, done: Pass) -> FeedbackBatch:
        """The entry of a pass: every active ramp for every request, and the shadows where there are any."""
        errors, labels = dict(done.errors), dict(done.labels)
        for ramp, pooled in done.pooled.items():
            errors[ramp], labels[ramp] = scores(self._heads[ramp](pooled))
        ramps = tuple(sorted(errors))
        requests = len(done.final_labels)
        return FeedbackBatch(
            model=self._identity.model,
            worker=self._identity.worker,
            epoch=self._identity.epoch,
            seq=seq,
            revision=done.plan.revision,
            padded_size=requests,
            ramps=ramps,
            errors=np.column_stack([errors[r] for r in ramps]) if ramps else np.zeros((requests, 0), np.float32),
            labels=np.column_stack([labels[r] for r in ramps]) if ramps else np.zeros((requests, 0), np.int32),
            final_labels=done.final_labels,
            exits=done.exits,
            shadow=tuple(r in done.pooled for r in ramps),
            catalog=self._identity.catalog,
            started_at=done.started_at,
            service_ms=done.service_s * 1e3,
            released_ms=(done.released_s * 1e3).astype(np.float32),
            guarded=done.guarded,
            share=done.share,
            trace=trace_of(done) if self.traced else "",
        )
