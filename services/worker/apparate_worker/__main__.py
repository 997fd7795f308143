"""The worker process: settings, prepared models, servers; one line on stdout when ready; drains on SIGTERM."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Sequence
from functools import partial

import torch
import uvloop

from apparate.contract.conditions import Reason
from apparate.contract.document import Document, InvalidDocument
from apparate.service.http import allow_connections
from apparate.service.kube import InvalidKubeconfig
from apparate.service.settings import InvalidSettings
from apparate.service.signals import end_on_sigterm
from apparate.service.telemetry import configure_logging, get_logger
from apparate.service.termination import LOG, tell_end
from apparate.service.tracing import tracing
from apparate_worker.documents import choose, find_documents
from apparate_worker.errors import InvalidSetup
from apparate_worker.liveness import guard_loop, stack_of
from apparate_worker.model.errors import ModelError
from apparate_worker.model.memory import keep_freed_memory
from apparate_worker.repository import Repository, load_document
from apparate_worker.served import Declared
from apparate_worker.settings import WorkerSettings
from apparate_worker.worker import Worker, device_of

log = get_logger(__name__)
USAGE, LOST, UNANSWERED = 2, 1, 3  # exit statuses: cannot start as asked; device lost; requests left at the deadline
SWITCH_S = 0.0005  # with Python's 5 ms the device thread waits that long for the lock while the loop parses a request
LOST_PAUSE_S = 0.5  # lets the answers that tell of the loss leave, and probes see it


def main() -> int:
    """Serve until told to stop; the exit status."""
    end_on_sigterm()
    faulthandler.enable()  # a crash in native code says where, before the process is gone
    try:
        settings = WorkerSettings.load()
    except InvalidSettings as error:
        print(f"apparate-worker: {error}", file=sys.stderr)
        tell_end(LOG, Reason.MODEL_LOAD_FAILED, str(error))
        return USAGE
    configure_logging(settings.log_level, "worker")
    sys.setswitchinterval(SWITCH_S)
    keep_freed_memory()
    allow_connections()
    try:
        documents = choose(find_documents(settings), settings)
        torch.set_num_threads(max(one.model.spec.serving.threads for one in documents))
        declared, device = load_declared(documents, settings)
        return uvloop.run(serve(declared, settings, device))
    except (InvalidDocument, InvalidKubeconfig, InvalidSetup, ModelError, OSError) as error:
        log.error("the worker cannot start", error=str(error))
        tell_end(settings.termination_log, Reason.MODEL_LOAD_FAILED, str(error))
        return USAGE
    except Exception as error:
        tell_end(settings.termination_log, Reason.CRASH_LOOP, f"{type(error).__name__}: {error}")
        raise


def load_declared(documents: Sequence[Document], settings: WorkerSettings) -> tuple[list[Declared], torch.device]:
    """Everything to serve from the start, and the device of all. Raises InvalidSetup and ModelError."""
    devices = {device_of(one.model.spec.serving.device) for one in documents}
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise InvalidSetup(f"{settings.document} asks for {names}: the models of one worker share one device")
    (device,) = devices
    return [Declared(one, load_document(one, device, settings)) for one in documents], device


async def serve(declared: list[Declared], settings: WorkerSettings, device: torch.device) -> int:
    """Start, say so, wait for a signal or the loss of the device, drain; the exit status."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, told, number)
    main_thread = threading.main_thread()
    guard_loop(loop, lambda why: _lost(settings, f"{why}; it is at:\n{stack_of(main_thread)}"))
    traces = tracing("apparate-worker", os.environ)
    worker = Worker(declared, settings, device, traces)
    declared.clear()  # a model that is replaced later must not be held here
    models = [one.document.model.key for one in worker.served.values()]
    log.info("warming up", models=models, device=str(device))
    if settings.model_control == "explicit":
        documents, load = partial(find_documents, settings), partial(load_document, settings=settings)
        worker.models.control = Repository(worker, settings, documents, load)
    starting = asyncio.create_task(worker.start())
    await _first(starting, told.wait())
    if not starting.done():
        log.info("told to stop before it was ready")
        _exit(0)  # nothing was taken yet, and the pass that warms up cannot be stopped
    http, grpc = await starting
    gc.collect()
    gc.freeze()  # torch's 200,000 objects stay: looking through them again takes 100 ms with the lock held
    print(json.dumps({"ready": True, "name": settings.name, "http": http, "grpc": grpc}), flush=True)
    log.info("ready", models=models, http=http, grpc=grpc, device=str(device))
    await _first(told.wait(), worker.failed.wait())
    answered = False
    if not worker.failed.is_set():
        log.info("draining")
        answered = await worker.drain(settings.grace_seconds)
    if traces is not None:
        await asyncio.to_thread(traces.shutdown)
    if worker.failed.is_set():
        await asyncio.sleep(LOST_PAUSE_S)
        _lost(settings, worker.lost)
    log.info("drained", served=sum(one.serving.served for one in worker.served.values()))
    if worker.device_thread.alive:  # stuck in a pass: a normal end would wait for it
        _exit(UNANSWERED)
    return 0 if answered else UNANSWERED


async def _first(*works: Awaitable[object]) -> None:
    """Until one of them is done; the others are cancelled, but for tasks that are their caller's own."""
    tasks = {asyncio.ensure_future(work): work for work in works}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task, work in tasks.items():
        if task is not work:
            task.cancel()


def _on_signal(told: asyncio.Event, number: int) -> None:
    if told.is_set():  # asked twice: now
        _exit(128 + number)
    told.set()


def _lost(settings: WorkerSettings, why: str) -> None:
    log.error("the worker ends", error=why)
    tell_end(settings.termination_log, Reason.DEVICE_LOST, why)
    _exit(LOST)


def _exit(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
