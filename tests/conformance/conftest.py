"""A worker that serves in a thread of its own, so that tests which know no event loop can ask it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from support.models import a_prepared_model, a_worker


@dataclass(frozen=True)
class Served:
    """Addresses of a worker, and its HTTP face to be called without a socket."""

    http: str
    grpc: str
    face: Any
    loop: asyncio.AbstractEventLoop

    def run(self, work: Any) -> Any:
        """The result of a coroutine in the worker's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A worker of the model that the module's `PREPARED` makes, else of the usual small one."""
    make = getattr(request.module, "PREPARED", a_prepared_model)
    started: Future[Served] = Future()

    async def serve() -> None:
        over = asyncio.Event()
        async with a_worker(make()) as (worker, http, grpc):
            loop = asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(over.set))
            started.set_result(Served(http, grpc, worker._http_face, loop))
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
