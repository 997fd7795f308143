"""Workers for tests that know no event loop: one that serves in a thread of its own, and one in another process."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from support.models import a_prepared_model, a_worker, write_prepared
from support.processes import Process, a_process
from support.worker_process import COMMAND, environ, faults, ready


@dataclass(frozen=True)
class Served:
    """Addresses of a worker."""

    http: str
    grpc: str


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A worker of the model that the module's `PREPARED` makes, else of the usual small one."""
    make = getattr(request.module, "PREPARED", a_prepared_model)
    started: Future[Served] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with a_worker(make()) as (_, http, grpc):
            loop = asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(over.set))
            started.set_result(Served(http, grpc))
            await over.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if started.done():
                raise
            started.set_exception(error)

    stop: list[Any] = []
    with capture_logs() as lines:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield started.result(60)
        stop[0]()
        thread.join(20)
    assert [line for line in lines if line["log_level"] in ("error", "critical")] == []


@dataclass(frozen=True)
class Apart:
    """A worker in a process of its own, and its addresses."""

    process: Process
    http: str
    grpc: str

    def is_well(self) -> None:
        """Fails unless it lives, is ready and has logged no error."""
        assert (self.process.popen.poll(), faults(self.process)) == (None, [])
        assert httpx.get(f"http://{self.http}/v2/health/ready", timeout=30).status_code == 200


@pytest.fixture(scope="session")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """A worker in a process of its own, of the model `tiny`; it must end well."""
    folder = tmp_path_factory.mktemp("apart")
    write_prepared(folder, serving={"drainSeconds": 5, "device": "cpu"})
    with a_process(COMMAND, environ(folder)) as process:
        said = ready(process)
        yield Apart(process, said["http"], said["grpc"])
        process.send(signal.SIGTERM)
        assert process.wait(20) == 0
