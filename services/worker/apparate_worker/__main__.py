"""The worker process: settings, prepared model, servers; one line on stdout when ready; drains on SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable

import torch
import uvloop

from apparate.contract.conditions import Reason
from apparate.contract.document import Document, InvalidDocument, load_documents
from apparate.service.kube import InvalidKubeconfig, client_of
from apparate.service.settings import InvalidSettings
from apparate.service.signals import end_on_sigterm
from apparate.service.telemetry import configure_logging, get_logger
from apparate.service.termination import LOG, tell_end
from apparate_worker.errors import InvalidSetup
from apparate_worker.liveness import guard_loop, stack_of
from apparate_worker.model.errors import ModelError
from apparate_worker.model.memory import keep_freed_memory
from apparate_worker.model.store import PreparedModel, load_prepared
from apparate_worker.objects import as_prepared, check_is_object, read_object
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
    try:
        document = find_document(settings)
        device = device_of(document.model.spec.serving.device)
        torch.set_num_threads(document.model.spec.serving.threads)
        prepared = load_prepared(settings.prepared or document.prepared, document, device)
        return uvloop.run(serve(document, prepared, settings, device))
    except (InvalidDocument, InvalidKubeconfig, InvalidSetup, ModelError, OSError) as error:
        log.error("the worker cannot start", error=str(error))
        tell_end(settings.termination_log, Reason.MODEL_LOAD_FAILED, str(error))
        return USAGE
    except Exception as error:
        tell_end(settings.termination_log, Reason.CRASH_LOOP, f"{type(error).__name__}: {error}")
        raise


def find_document(settings: WorkerSettings) -> Document:
    """What to serve: of the file, or else of the object. Raises InvalidDocument, InvalidSetup and OSError."""
    if settings.document is None:
        client = client_of(settings.kubeconfig)
        with contextlib.closing(client):
            return as_prepared(read_object(client, settings.object), settings.prepared)
    document = choose(load_documents(settings.document), settings)
    if settings.object:
        check_is_object(document, settings.object)
    return document


def choose(documents: list[Document], settings: WorkerSettings) -> Document:
    """The document to serve. Raises InvalidSetup."""
    names = [one.model.metadata.name for one in documents]
    if settings.model:
        documents = [one for one in documents if one.model.metadata.name == settings.model]
        if not documents:
            raise InvalidSetup(f"{settings.document} has no model {settings.model!r}; there are: {', '.join(names)}")
    if len(documents) > 1:
        raise InvalidSetup(f"{settings.document} has {', '.join(names)}: choose one with EEM_WORKER_MODEL")
    return documents[0]


async def serve(document: Document, prepared: PreparedModel, settings: WorkerSettings, device: torch.device) -> int:
    """Start, say so, wait for a signal or the loss of the device, drain; the exit status."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _on_signal, told, number)
    main_thread = threading.main_thread()
    guard_loop(loop, lambda why: _lost(settings, f"{why}; it is at:\n{stack_of(main_thread)}"))
    worker = Worker([Declared(document, prepared)], settings, device)
    log.info("warming up", model=document.model.key, device=str(device))
    starting = asyncio.create_task(worker.start())
    await _first(starting, told.wait())
    if not starting.done():
        log.info("told to stop before it was ready")
        _exit(0)  # nothing was taken yet, and the pass that warms up cannot be stopped
    http, grpc = await starting
    gc.collect()
    gc.freeze()  # torch's 200,000 objects stay: looking through them again takes 100 ms with the lock held
    print(json.dumps({"ready": True, "name": settings.name, "http": http, "grpc": grpc}), flush=True)
    log.info("ready", model=document.model.key, http=http, grpc=grpc, device=str(device))
    await _first(told.wait(), worker.failed.wait())
    answered = False
    if not worker.failed.is_set():
        log.info("draining")
        answered = await worker.drain(settings.grace_seconds)
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
