"""Watching Kubernetes objects from asyncio: a thread lists and follows, and starts anew after whatever goes wrong."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import urllib3

from apparate.service.kube import GONE, KubeClient, KubeError
from apparate.service.telemetry import get_logger

Json = dict[str, Any]
WATCH_S = 45.0  # the server ends a watch after so long, and sends a bookmark shortly before
MARGIN_S = 5.0  # later than that it is not late but dead: half-open connections are left within a minute
BACKOFF_S = (0.1, 5.0)  # first and longest pause between attempts
LOOK_S = 0.5  # how often a thread that waits for the event loop looks whether it is still wanted
QUICK_S = 1.0  # a watch that ends sooner has not ended in the normal course of things: the next one waits a little
QUEUED = 256  # events that wait for the event loop; when it is slower, the server waits, and at last starts us anew
log = get_logger(__name__)


@dataclass(frozen=True)
class Listed:
    """All objects there are; what is not among them is gone."""

    objects: tuple[Json, ...]


@dataclass(frozen=True)
class Changed:
    """One object that came, changed or went."""

    kind: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Json


Event = Listed | Changed


class Watch:
    """Follows a collection, or one object of it.

    With `name` only that object is followed, which needs no right to list: the watch itself tells of it first.
    """

    def __init__(self, client: KubeClient, path: str, *, name: str = "", watch_s: float = WATCH_S) -> None:
        self._client, self._path, self._name, self._watch_s = client, path, name, watch_s
        self._closed = threading.Event()
        self._response: urllib3.BaseHTTPResponse | None = None
        self._version = ""
        """Where to go on from; empty: from the state as it is."""

    async def events(self) -> AsyncIterator[Event]:
        """First the state, then each change, for ever. Raises nothing: failures are logged once and tried again."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event] = asyncio.Queue(QUEUED)
        thread = threading.Thread(target=self._run, args=(loop, queue), name=f"watch {self._path}", daemon=True)
        thread.start()
        try:
            while True:
                yield await queue.get()
        finally:
            self.close()

    def close(self) -> None:
        """End the thread, also one that waits for the server."""
        self._closed.set()
        response = self._response
        if response is not None:
            with contextlib.suppress(ValueError, RuntimeError, OSError, AttributeError):
                response.shutdown()

    def _run(self, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Event]) -> None:
        failures = 0
        while not self._closed.is_set():
            started = time.monotonic()
            try:
                for event in self._attempt():
                    failures = 0
                    if event is not None and not self._hand_over(event, loop, queue):
                        return
                if time.monotonic() - started > QUICK_S:
                    continue
            except KubeError as error:
                if self._closed.is_set():
                    return
                if not error.passing:
                    self._version = ""
                if error.status == GONE and not failures:
                    failures = 1
                    continue
                failures += 1
                if failures == 1 or (failures == 2 and error.status == GONE):
                    log.warning("watch ended, tried again", path=self._path, name=self._name, error=str(error))
            first, longest = BACKOFF_S
            self._closed.wait(min(longest, first * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))

    def _hand_over(self, event: Event, loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Event]) -> bool:
        """Put an event into the loop's queue; False when there is nobody to take it any more."""
        coroutine = queue.put(event)
        try:
            putting = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            return False
        while not self._closed.is_set():
            try:
                putting.result(LOOK_S)
            except concurrent.futures.TimeoutError:
                continue
            except concurrent.futures.CancelledError:  # the loop is ending
                return False
            return True
        putting.cancel()
        return False

    def _attempt(self) -> Iterator[Event | None]:
        """One list, if there is no version to go on from, and one watch to its end. None: the server answered."""
        if not self._version and not self._name:
            found = self._client.call("GET", self._path)
            self._version = str(found["metadata"]["resourceVersion"])
            yield Listed(tuple(found.get("items", ())))
        query: Json = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": max(1, int(self._watch_s))}
        if self._name:
            query["fieldSelector"] = f"metadata.name={self._name}"
        if self._version:
            query["resourceVersion"] = self._version
        response = self._client.stream(self._path, query, self._watch_s + MARGIN_S)
        self._response = response
        try:
            yield None
            for line in _lines(response):
                event = json.loads(line)
                kind, thing = event["type"], event["object"]
                if kind == "ERROR":
                    raise KubeError(int(thing.get("code", 0)), str(thing.get("message", "watch failed")))
                self._version = str(thing["metadata"]["resourceVersion"])
                if kind != "BOOKMARK":
                    yield Changed(kind, thing)
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError, KeyError, TypeError) as error:
            raise KubeError(0, f"watch of {self._path}: {type(error).__name__}: {error}") from None
        finally:
            self._response = None
            response.close()


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Lines as soon as they are whole."""
    rest = b""
    for chunk in response.stream(None):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line for line in whole if line)
