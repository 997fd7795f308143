"""Local mode: Redis, one controller and the workers of some EarlyExitModels, as processes of this machine."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from apparate.cli.children import Child
from apparate.cli.logs import LogWriter
from apparate.cli.planning import CONTROLLER_PORT, Served, group_of, key_of, plan
from apparate.cli.ports import Ports
from apparate.service.redis_server import EmbeddedRedis, NoRedisServer, is_free

TEND_INTERVAL_S = 0.05
CONTROLLER_NICENESS = 10  # one machine does both: answers come before adaptation
DRAIN_MARGIN_S = 10.0  # on top of the spec's drain time: the process has to end, too
CONTROLLER_STOP_S = 10.0


class StackFailed(RuntimeError):
    """Local mode cannot go on; the message is the reason of the process that could not."""


@dataclass(frozen=True)
class Endpoint:
    """Where one worker listens, as host:port."""

    model: str
    worker: str
    http: str
    grpc: str


class LocalStack:
    """Everything local mode runs. `start`, use `endpoints`, `stop`; or as a context manager.

    A thread of its own owns the processes: the kernel ends them when that thread does, so nothing outlives us. A
    process that dies is started again with backoff, on the ports it had. `adapt=False` serves the plain models:
    no Redis, no controller. `together=True` serves all models in each worker, which must then be of one file.
    """

    def __init__(
        self,
        served: Sequence[Served],
        *,
        redis_url: str = "",
        workers: int | None = None,
        adapt: bool = True,
        ports: Ports = Ports(),
        together: bool = False,
        log: LogWriter | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.served = tuple(served)
        self.log = log or LogWriter()
        self.redis = EmbeddedRedis() if adapt and not redis_url else None
        self.redis_restarts = 0
        self._redis_url = redis_url
        self._adapt = adapt
        self._ports = ports
        self._together = together
        self.planned = plan(self.served, ports, workers=workers, together=together)
        # EEM_ settings are ours to give: one that is left over in the shell would change a child in silence
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("EEM_")}
        self._environ = {**inherited, "PYTHONUNBUFFERED": "1", **(environ or {})}
        self.workers: dict[str, list[Child]] = {}
        self.controller: Child | None = None
        self._stop = threading.Event()
        self._now = threading.Event()
        self._up = threading.Event()
        self._failed = ""
        self._clean = True
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LocalStack:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def redis_url(self) -> str:
        """What workers and controller connect to; empty without adaptation. Has a password: not for logs."""
        return self.redis.url if self.redis is not None else self._redis_url

    @property
    def children(self) -> Iterator[Child]:
        """Every process but Redis."""
        if self.controller is not None:
            yield self.controller
        for several in self.workers.values():
            yield from several

    @property
    def endpoints(self) -> list[Endpoint]:
        """Where the workers that are ready listen."""
        return [
            Endpoint(key_of(one), str(w.ready["name"]), str(w.ready["http"]), str(w.ready["grpc"]))
            for one in self.served
            for w in self.workers.get(group_of(one, together=self._together), ())
            if w.ready is not None
        ]

    @property
    def controller_url(self) -> str:
        """Address of the controller's HTTP API; empty while there is none."""
        ready = self.controller.ready if self.controller is not None else None
        return f"http://{ready['http']}" if ready else ""

    @property
    def failed(self) -> str:
        """Why serving cannot go on; empty while it can."""
        return self._failed

    @property
    def stopping(self) -> bool:
        """Whether it drains or has ended."""
        return self._stop.is_set()

    def start(self, timeout_s: float = 180.0) -> LocalStack:
        """Start everything and wait until all is ready. Raises StackFailed, after ending what had started."""
        self._thread = threading.Thread(target=self._own, name="local stack", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + timeout_s
        while not self._up.wait(TEND_INTERVAL_S):
            if not self._thread.is_alive():
                raise StackFailed(self._failed or "local mode was stopped")
            if time.monotonic() > deadline:
                waiting = ", ".join(c.name for c in self.children if c.ready is None)
                self.kill()
                raise StackFailed(f"not ready within {timeout_s:.0f} s: {waiting}")
        return self

    def request_stop(self) -> None:
        """Begin to drain; returns at once. Safe in a signal handler."""
        self._stop.set()

    def request_kill(self) -> None:
        """End everything now; returns at once. Safe in a signal handler."""
        self._now.set()
        self._stop.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything has ended; whether it has."""
        assert self._thread is not None, "not started"
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stop(self) -> bool:
        """Drain and end: workers, then the controller, then Redis. Whether every process ended by itself, with 0."""
        self.request_stop()
        if self._thread is not None:
            self._thread.join()
        return self._clean

    def kill(self) -> None:
        """End everything now."""
        self.request_kill()
        if self._thread is not None:
            self._thread.join()

    # The owner thread: everything below runs there and nowhere else.

    def _own(self) -> None:
        try:
            self._start_all()
            while not self._stop.wait(TEND_INTERVAL_S):
                self._tend()
        except NoRedisServer as error:
            self._failed = str(error)
        except OSError as error:
            self._failed = f"cannot start a process: {error}"
        finally:
            self._end_all()

    def _start_all(self) -> None:
        if self.redis is not None:
            self.redis.start()
        self.workers = self._make_workers()
        if self._adapt:
            self.controller = self._make_controller()
        for child in self.children:
            child.start()

    def _make_workers(self) -> dict[str, list[Child]]:
        found: dict[str, list[Child]] = {}
        for one in self.planned:
            environ = {
                "EEM_WORKER_DOCUMENT": str(one.of.file.resolve()),
                "EEM_WORKER_MODEL": "" if self._together else one.of.document.model.metadata.name,
                "EEM_WORKER_NAME": one.name,
                "EEM_WORKER_WORKERS": str(one.several),
                "EEM_WORKER_REDIS_URL": self.redis_url if self._adapt else "",
                "EEM_WORKER_HTTP_PORT": str(one.http),
                "EEM_WORKER_GRPC_PORT": str(one.grpc),
            }
            child = self._child(f"worker {one.name}", "apparate_worker", environ)
            found.setdefault(one.group, []).append(child)
        return found

    def _make_controller(self) -> Child:
        files = dict.fromkeys(str(one.file.resolve()) for one in self.served)
        environ = {
            "EEM_CONTROLLER_REDIS_URL": self.redis_url,
            "EEM_CONTROLLER_DOCUMENTS": ",".join(files),
            "EEM_CONTROLLER_NICENESS": str(CONTROLLER_NICENESS),
            "EEM_CONTROLLER_PORT": str(self._controller_port()),
        }
        return self._child("controller", "apparate_controller", environ)

    def _controller_port(self) -> int:
        if self._ports.controller is not None:
            return self._ports.controller
        ours = any(CONTROLLER_PORT in (one.http, one.grpc) for one in self.planned)
        return 0 if ours or not is_free(CONTROLLER_PORT) else CONTROLLER_PORT

    def _child(self, name: str, module: str, environ: Mapping[str, str]) -> Child:
        return Child(name, (sys.executable, "-m", module), {**self._environ, **environ}, self.log)

    def _tend(self) -> None:
        if self.redis is not None and not self.redis.running:
            self.redis_restarts += 1
            self.log.event(
                "redis", "redis-server is gone; starting again", level="warning", restarts=self.redis_restarts
            )
            self.redis.start()
        for child in self.children:
            child.tend()
        if not self._up.is_set():
            lost = [child.given_up for child in self.children if child.given_up]
            if all(child.ready is not None for child in self.children):
                self._up.set()
        else:  # a lost controller is only lost adaptation: workers keep their last plan and their guard
            lost = [
                several[0].given_up for several in self.workers.values() if several and all(w.given_up for w in several)
            ]
        if lost:
            self._failed = lost[0]
            self._stop.set()

    def _end_all(self) -> None:
        workers = [child for several in self.workers.values() for child in several]
        drain_s = max((one.document.model.spec.serving.drain_seconds for one in self.served), default=0.0)
        self._end(workers, drain_s + DRAIN_MARGIN_S)
        if self.controller is not None:
            self._end([self.controller], CONTROLLER_STOP_S)
        if self.redis is not None:
            self.redis.close()

    def _end(self, children: Sequence[Child], timeout_s: float) -> None:
        for child in children:
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for child in children:
            while not child.wait(TEND_INTERVAL_S):
                if self._now.is_set() or time.monotonic() > deadline:
                    if not self._now.is_set():
                        self.log.event(child.name, "not drained in time; killed", level="error", limit_s=timeout_s)
                    child.send(signal.SIGKILL)
                    child.wait(5.0)
                    break
            self._clean = self._clean and child.status in (0, None)


def on_signals(stack: LocalStack) -> Callable[[], None]:
    """First SIGINT, SIGTERM or SIGHUP drains, the second ends at once; call the result to put handlers back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    came: list[int] = []

    def handler(number: int, _: object) -> None:
        came.append(number)
        if len(came) == 1:
            stack.log.event("apparate", "draining; once more ends it now")
            stack.request_stop()
        else:
            stack.request_kill()

    before = {number: signal.signal(number, handler) for number in numbers}

    def restore() -> None:
        for number, previous in before.items():
            signal.signal(number, previous)

    return restore
