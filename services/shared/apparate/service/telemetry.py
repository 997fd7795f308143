"""Logs and metrics: JSON lines to stderr, prometheus_client objects built from contract.metrics."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import prometheus_client
import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    Summary,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, choose_encoder

from apparate.contract.metrics import Metric

METRICS_CONTENT_TYPE = CONTENT_TYPE_LATEST
Values = Sequence[float] | npt.NDArray[np.floating[Any]]
KINDS_KEPT = 64  # of exceptions that are told apart; a model has few lines that raise
FOR_CLIENTS = ("asyncio", "grpc", "uvicorn")  # libraries that log what clients do
LOG_EVERY_S = 10.0  # between lines of one kind, when something fails again and again


class Histogram(prometheus_client.Histogram):
    """A histogram that takes many values at once: one by one they cost more than a quick model's passes."""

    def observe_all(self, values: Values) -> None:
        """Observe every one of some finite values."""
        array = np.asarray(values, np.float64)
        self._sum.inc(float(array.sum()))
        counts = np.bincount(np.searchsorted(self._upper_bounds, array), minlength=len(self._buckets))
        for place in counts.nonzero()[0].tolist():
            self._buckets[place].inc(int(counts[place]))


class Telemetry:
    """The metric objects of one process, by name, in a registry of its own; and the library's process_*."""

    def __init__(self, metrics: tuple[Metric, ...], constant: dict[str, str] | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series of each counter, for nobody
        self.registry = CollectorRegistry()
        self._constant = constant or {}
        self._labels = {m.name: m.labels for m in metrics}
        self._objects = {m.name: self._build(m) for m in metrics}
        ProcessCollector(registry=self.registry)

    def _build(self, metric: Metric) -> Any:
        labels = (*self._constant, *metric.labels)
        if metric.kind == "counter":
            return Counter(metric.name, metric.help, labels, registry=self.registry)
        if metric.kind == "gauge":
            return Gauge(metric.name, metric.help, labels, registry=self.registry)
        if metric.kind == "summary":
            return Summary(metric.name, metric.help, labels, registry=self.registry)
        return Histogram(metric.name, metric.help, labels, buckets=metric.buckets, registry=self.registry)

    def __call__(self, name: str, **labels: str) -> Any:
        """The metric `name` with its labels filled in. Raises KeyError for a name that is not declared."""
        found = self._objects[name]
        values = {**self._constant, **labels}
        return found.labels(**values) if values else found

    def forget(self, **labels: str) -> None:
        """Drop what is known under these labels from every metric that has them: what they name is gone."""
        for name, metric in self._objects.items():
            if labels.keys() <= set(self._labels[name]):
                metric.remove_by_labels(labels)

    def drop(self, name: str, **labels: str) -> None:
        """Drop the series of one metric that have these labels."""
        self._objects[name].remove_by_labels(labels)

    def render(self) -> bytes:
        """The text exposition for /metrics."""
        return generate_latest(self.registry)

    def render_for(self, accept: str) -> tuple[bytes, str]:
        """The exposition that who sends this Accept header wants, and its content type. OpenMetrics has exemplars."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type


class Sparsely:
    """Lets one line through in `every_s`, and tells it how many were held back before it. Safe from any thread."""

    def __init__(self, every_s: float = LOG_EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_s, self._clock = every_s, clock
        self._next = float("-inf")
        self._held = 0
        self._lock = threading.Lock()

    def __call__(self) -> int | None:
        """Lines held back since the last one, or None when this one is to be held back too."""
        with self._lock:
            if self._clock() < self._next:
                self._held += 1
                return None
            held, self._held, self._next = self._held, 0, self._clock() + self._every_s
            return held


class Faults:
    """Tells of exceptions that may come with every request: each kind with its traceback once, then with a count.

    A kind is an event, a type and the line that raised. Safe from any thread.
    """

    def __init__(self, log: Any, every_s: float = LOG_EVERY_S) -> None:
        self._log, self._every_s = log, every_s
        self._kinds: dict[tuple[str, type[BaseException], str], Sparsely] = {}

    def __call__(self, event: str, error: BaseException) -> None:
        """Log `error`, unless one of its kind was logged just now."""
        kind = (event, type(error), _raised_at(error))
        first = kind not in self._kinds
        if first and len(self._kinds) >= KINDS_KEPT:
            self._kinds.clear()
        held = self._kinds.setdefault(kind, Sparsely(self._every_s))()
        if held is not None:
            words = f"{type(error).__name__}: {error}"
            self._log.error(event, error=words, held_back=held, exc_info=error if first else None)


def _raised_at(error: BaseException) -> str:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last is not None else ""


class Quietly(logging.Filter):
    """Holds back what the libraries that speak to clients say of them: a line of each kind in `every_s`, with a count.

    Else any client could fill the log. A kind is the place that logs it, and the type of its exception.
    """

    def __init__(self, every_s: float = LOG_EVERY_S) -> None:
        super().__init__()
        self._every_s = every_s
        self._kinds: dict[tuple[str, int, type[BaseException] | None], Sparsely] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.name.partition(".")[0] not in FOR_CLIENTS:
            return True
        raised = record.exc_info[0] if record.exc_info else None
        held = self._kinds.setdefault((record.pathname, record.lineno, raised), Sparsely(self._every_s))()
        if held:
            record.msg = f"{record.msg} ({held} more were held back)"
        return held is not None


def configure_logging(level: str = "INFO", service: str = "") -> None:
    """JSON lines on stderr from structlog and the standard library alike. Call once, in __main__."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    handler.addFilter(Quietly())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    if service:
        structlog.contextvars.bind_contextvars(service=service)


def get_logger(name: str) -> Any:
    """A structured logger: `log.info("plan applied", revision=3)`."""
    return structlog.stdlib.get_logger(name)
