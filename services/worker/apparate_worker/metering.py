"""The worker's metrics: passes are counted in the reporting thread, requests by the faces, gauges when scraped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from apparate.catalog import RampCatalog
from apparate.contract.serving import Slo
from apparate.feedback import FINAL
from apparate.service.telemetry import Telemetry
from apparate_worker.batching import Batcher
from apparate_worker.passes import Pass
from apparate_worker.plain import PlainTimes
from apparate_worker.pressure import Stage

PROTOCOLS = ("http", "grpc")
CODES = (200, 400, 404, 413, 429, 499, 500, 503, 504)


def forced(done: Pass) -> int:
    """Answers of a pass that left where the exit rule does not let them, or never did: there must be none."""
    found = done.released_at.count(0.0)
    for setting in done.plan.ramps:
        if (errors := done.errors.get(setting.ramp)) is not None:
            left = done.exits == setting.ramp
            found += int(np.count_nonzero(left & ~(errors < np.float32(setting.threshold))))
    return found


class Meter:
    """Metric objects of one served model, with their labels filled in once."""

    def __init__(self, telemetry: Telemetry, namespace: str, model: str, catalog: RampCatalog, max_batch: int) -> None:
        self._telemetry = telemetry
        self._labels = {"namespace": namespace, "model": model}
        self._counted: dict[str, int] = {}
        one = self._one
        self._batch, self._queue, self._pass = (
            one("apparate_batch_requests"),
            one("apparate_queue_seconds"),
            one("apparate_pass_seconds"),
        )
        self._plain_times = PlainTimes(catalog, max_batch)
        self._slo_s: float | None = None
        self._judged, self._late = one("apparate_slo_answers"), one("apparate_slo_late_answers")
        self._requests = {
            (protocol, code): one("apparate_requests", protocol=protocol, code=str(code))
            for protocol in PROTOCOLS
            for code in CODES
        }
        names = {FINAL: "final"} | {r: str(r) for r in range(catalog.ramps)}
        self._release = {r: one("apparate_release_seconds", ramp=name) for r, name in names.items()}
        self._plain = {r: one("apparate_plain_seconds", ramp=name) for r, name in names.items()}
        self._segment = {r: one("apparate_segment_seconds", ramp=name) for r, name in names.items()}
        self._exits = {r: one("apparate_exits", ramp=name) for r, name in names.items()}
        self._wrong = {r: one("apparate_wrong_exits", ramp=name) for r, name in names.items() if r != FINAL}
        self._checked, self._forced = one("apparate_checked_answers"), one("apparate_forced_exits")
        self._stopped, self._dropped, self._saved = (
            one("apparate_stopped_passes"),
            one("apparate_dropped_rows"),
            one("apparate_saved_seconds"),
        )

    def _one(self, name: str, **labels: str) -> Any:
        return self._telemetry(name, **self._labels, **labels)

    def passed(self, passes: Sequence[Pass], traces: Callable[[Pass], Sequence[str]] | None = None) -> None:
        """Count some passes and the answers that left them.

        traces: the trace of each answer of a pass, empty where there is none.
        """
        if not passes:
            return
        self._batch.observe_all([len(done.exits) for done in passes])
        self._pass.observe_all([done.service_s for done in passes])
        self._queue.observe_all(np.concatenate([done.queued_s for done in passes]))
        released: dict[int, list[float]] = {}
        plain: dict[int, list[float]] = {}
        for done in passes:
            seconds, told = done.released_s.tolist(), traces(done) if traces is not None else ()
            later = self._plain_times.later_s(done.plan.active, len(seconds))
            for row, (ramp, one) in enumerate(zip(done.exits.tolist(), seconds, strict=True)):
                plain.setdefault(ramp, []).append(one + later[ramp])
                if told and told[row]:
                    self._release[ramp].observe(one, {"trace_id": told[row]})
                else:
                    released.setdefault(ramp, []).append(one)
            self._checks(done)
            if (slo_s := self._slo_s) is not None:
                self._judged.inc(len(seconds))
                self._late.inc(sum(one > slo_s for one in seconds))
        for ramp, found in released.items():
            self._release[ramp].observe_all(found)
        for ramp, found in plain.items():
            self._plain[ramp].observe_all(found)
            self._exits[ramp].inc(len(found))

    def _checks(self, done: Pass) -> None:
        """Count what a pass says of its answers' truth, what it was spared, and its steps where they were timed."""
        self._forced.inc(forced(done))
        if done.whole:
            self._checked.inc(len(done.exits))
            for ramp, labels in done.labels.items():
                wrong = np.count_nonzero((done.exits == ramp) & (labels != done.final_labels))
                self._wrong[ramp].inc(wrong / done.share)
        else:
            self._stopped.inc(FINAL not in done.exits)
            self._dropped.inc(done.dropped)
            self._saved.inc(done.saved_ms / 1e3)
        if done.timed and not done.pooled:  # with shadows it stops at every ramp: both kinds together add to no pass
            for ramp, seconds in done.timed:
                self._segment[ramp].observe(seconds)

    def answered(self, protocol: str, code: int) -> None:
        """Count an answered request of a protocol by its HTTP status."""
        self._requests[protocol, code].inc()

    def refused(self, reason: str) -> None:
        """Count a plan that is not run."""
        self._one("apparate_plans_refused", reason=reason).inc()

    def describe(self, version: str, device: str, catalog: str) -> None:
        """Say what this worker is, besides its model."""
        self._telemetry.drop("apparate_worker_info", **self._labels)
        self._one("apparate_worker_info", version=version, device=device, catalog=catalog).set(1)

    def want(self, slo: Slo | None) -> None:
        """Hold answers against another objective from now on, or against none."""
        self._slo_s = None if slo is None else slo.latency_ms / 1e3
        for name, value in (("apparate_slo_seconds", self._slo_s), ("apparate_slo_target_ratio", slo and slo.target)):
            if value is None:
                self._telemetry.drop(name, **self._labels)
            else:
                self._one(name).set(value)

    def gpu(self, memory: Mapping[str, float]) -> None:
        """Take the memory of the worker's GPU, in bytes by state."""
        for state, value in memory.items():
            self._one("apparate_gpu_memory_bytes", state=state).set(value)

    def forget(self) -> None:
        """Drop every series of this model, which is not served any more."""
        self._telemetry.forget(**self._labels)

    def set(self, gauges: Mapping[str, float], counters: Mapping[str, int]) -> None:
        """Bring metrics that are kept elsewhere up to date; `counters` are totals."""
        for name, value in gauges.items():
            self._one(name).set(value)
        for name, total in counters.items():
            self._raise(name, total)

    def pressed(self, batcher: Batcher) -> None:
        """Bring what the queue refused, and its stages under pressure, up to date."""
        pressure = batcher.pressure
        on = pressure.stages
        for stage in Stage:
            self._one("apparate_pressure", stage=stage.label).set(stage in on)
            self._raise("apparate_pressure_entries", pressure.entered[stage], stage=stage.label)
        for (priority, reason), total in batcher.admission.refused.items():
            self._raise("apparate_refused_requests", total, priority=priority, reason=reason)

    def _raise(self, name: str, total: int, **labels: str) -> None:
        """Bring a counter up to a total that is kept elsewhere."""
        counter = self._one(name, **labels)
        key = "/".join((name, *labels.values()))
        counter.inc(total - self._counted.get(key, 0))
        self._counted[key] = total


def count_unknown(telemetry: Telemetry, protocol: str, code: int) -> None:
    """Count an answered request of a model that is not served here."""
    telemetry("apparate_requests", namespace="", model="", protocol=protocol, code=str(code)).inc()
