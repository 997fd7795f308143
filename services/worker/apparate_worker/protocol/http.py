"""The HTTP face: an ASGI application without framework, because every microsecond here is paid by every request."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

import orjson
import uvicorn

from apparate.service.http import Http
from apparate.service.telemetry import METRICS_CONTENT_TYPE, Faults, get_logger
from apparate_worker.errors import InvalidRequest, NotReady, TooLarge, WorkerError
from apparate_worker.protocol.dataplane import Dataplane
from apparate_worker.protocol.models import Models
from apparate_worker.protocol.oip_json import parse, render

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
BINARY: tuple[bytes, bytes] = (b"content-type", b"application/octet-stream")
MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer)?")
WATCH_AFTER_S = 0.05  # a shorter request is not worth a task that waits for its client to go away
KEEP_ALIVE_S = 75  # longer than the 60 s of common load balancers, so that it is they who close
log = get_logger(__name__)


class ClientGone(Exception):
    """The client went away before its request was whole."""


class HttpFace:
    """Open Inference Protocol v2 over HTTP, and /metrics."""

    def __init__(
        self,
        models: Models,
        *,
        max_body_bytes: int,
        metrics: Callable[[], bytes],
    ) -> None:
        self._models, self._max_body_bytes, self._metrics = models, max_body_bytes, metrics
        self._faults = Faults(log)
        self.draining = False
        """Whether answers ask clients to close their connections."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            if scope["method"] == "POST":
                await self._post(scope, receive, send)
            elif scope["method"] == "GET":
                await self._get(scope["path"], send)
            else:
                await self._reply(
                    send, 405, {"error": f"method {scope['method']} is not allowed"}, [(b"allow", b"GET, POST")]
                )
        except ClientGone:
            return

    async def _get(self, path: str, send: Send) -> None:
        models = self._models
        if path == "/v2/health/live":
            live = models.live()
            await self._reply(send, 200 if live else 503, {"live": live})
        elif path == "/v2/health/ready":
            ready = models.ready()
            await self._reply(send, 200 if ready else 503, {"ready": ready})
        elif path == "/metrics":
            await self._send(send, 200, self._metrics(), [(b"content-type", METRICS_CONTENT_TYPE.encode())])
        elif path.rstrip("/") == "/v2":
            await self._reply(send, 200, models.server_metadata())
        else:
            await self._get_model(path, send)

    async def _get_model(self, path: str, send: Send) -> None:
        match = MODEL_PATH.fullmatch(path)
        if match is None:
            await self._reply(send, 404, {"error": f"there is nothing at {path[:200]}"})
            return
        name, version, action = match.groups()
        try:
            ready = self._models.model_ready(name, version or "")
            if action == "/infer":
                await self._reply(send, 405, {"error": "infer takes POST"}, [(b"allow", b"POST")])
            elif action == "/ready":
                await self._reply(send, 200 if ready else 503, {"name": name, "ready": ready})
            else:
                await self._reply(send, 200, self._model_metadata(self._models.find(name, version or "")))
        except WorkerError as error:
            await self._refuse(send, error)

    def _model_metadata(self, plane: Dataplane) -> dict[str, Any]:
        return {
            "name": plane.name,
            "versions": self._models.versions(plane.name),
            "platform": "pytorch",
            "inputs": [vars(one) for one in plane.model_inputs()],
            "outputs": [vars(one) for one in plane.model_outputs()],
        }

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = MODEL_PATH.fullmatch(scope["path"])
        if match is None or match[3] != "/infer":
            await self._drain(receive, self._max_body_bytes)
            await self._reply(send, 404, {"error": f"there is nothing to POST to at {scope['path'][:200]}"})
            return
        name = match[1]
        try:
            header_length, length, expects = _read_headers(scope["headers"])
            body = await self._body(receive, length, expects)
            parsed = parse(body, header_length, name, match[2] or "")
            plane = self._models.find(name, parsed.request.version)
            answer = await self._watched(plane.infer(parsed.request), receive)
        except WorkerError as error:
            self._count(name, error.status)
            await self._refuse(send, error)
            return
        except ClientGone:
            self._count(name, 499)
            raise
        except asyncio.CancelledError:
            if not self.draining:
                raise
            gone = NotReady("the worker is stopping")  # and the client has not sent all of its request in time
            self._count(name, gone.status)
            await self._refuse(send, gone)
            return
        except Exception as error:  # noqa: BLE001 - outermost: told with its traceback, and answered
            self._faults("request failed", error)
            self._count(name, 500)
            await self._reply(send, 500, {"error": "internal error"})
            return
        content, json_bytes = render(answer, parsed.binary)
        self._count(name, 200)
        if json_bytes is None:
            await self._send(send, 200, content, [JSON])
        else:
            await self._send(send, 200, content, [BINARY, (b"inference-header-content-length", b"%d" % json_bytes)])

    def _count(self, name: str, status: int) -> None:
        self._models.count("http", name, status)

    async def _body(self, receive: Receive, length: int | None, expects: bool) -> bytes:
        """The whole body. Raises TooLarge as soon as it is known to be above the limit, and ClientGone."""
        limit = self._max_body_bytes
        if length is not None and length > limit:
            if not expects:  # a client that waits for `100 Continue` has not begun to send
                await self._drain(receive, length if length <= 2 * limit else 0)
            raise TooLarge(f"the body has {length} bytes, at most {limit} are allowed")
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGone
        if not message.get("more_body"):
            whole: bytes = message.get("body", b"")
            if len(whole) > limit:
                raise TooLarge(f"the body has {len(whole)} bytes, at most {limit} are allowed")
            return whole
        parts, size = [message["body"]], len(message["body"])
        while message.get("more_body"):
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                await self._drain(receive, limit)
                raise TooLarge(f"the body has more than {limit} bytes, the most allowed")
        return b"".join(parts)

    @staticmethod
    async def _drain(receive: Receive, most: int) -> None:
        """Read and forget up to `most` bytes, so that a client that is only a little too large hears the answer."""
        seen = 0
        while seen < most:
            message = await receive()
            if message["type"] != "http.request" or not message.get("more_body"):
                return
            seen += len(message.get("body", b""))

    @staticmethod
    async def _watched(work: Any, receive: Receive) -> Any:
        """The result of `work`; cancels it, and raises ClientGone, when the client goes away meanwhile."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        watch: list[asyncio.Task[None]] = []
        gone = False

        async def wait_for_disconnect() -> None:
            nonlocal gone
            while (await receive())["type"] != "http.disconnect":
                pass
            gone = True
            task.cancel()

        timer = loop.call_later(WATCH_AFTER_S, lambda: watch.append(loop.create_task(wait_for_disconnect())))
        try:
            return await work
        except asyncio.CancelledError:
            if gone and not task.uncancel():
                raise ClientGone from None
            raise
        finally:
            timer.cancel()
            for one in watch:
                one.cancel()

    async def _refuse(self, send: Send, error: WorkerError) -> None:
        headers: Headers = []
        if error.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after_s))
        if isinstance(error, TooLarge):
            headers.append((b"connection", b"close"))
        await self._reply(send, error.status, {"error": str(error)}, headers)

    async def _reply(self, send: Send, status: int, content: Any, headers: Headers | None = None) -> None:
        await self._send(send, status, orjson.dumps(content), [JSON, *(headers or [])])

    async def _send(self, send: Send, status: int, body: bytes, headers: Headers) -> None:
        headers.append((b"content-length", b"%d" % len(body)))
        if self.draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def _read_headers(headers: list[tuple[bytes, bytes]]) -> tuple[int | None, int | None, bool]:
    """(bytes of JSON, bytes of body, whether the client waits for `100 Continue`). Raises InvalidRequest."""
    json_bytes = length = None
    expects = False
    for name, value in headers:
        if name == b"inference-header-content-length":
            if not value.isdigit() or len(value) > 12:
                raise InvalidRequest(
                    f"Inference-Header-Content-Length is {value[:40].decode('latin-1')!r}, not a number"
                )
            json_bytes = int(value)
        elif name == b"content-length":
            length = int(value)  # the HTTP parser has refused anything else
        elif name == b"content-encoding" and value != b"identity":
            raise InvalidRequest(f"Content-Encoding {value[:40].decode('latin-1')!r} is not supported")
        elif name == b"expect":
            expects = value.lower() == b"100-continue"
    return json_bytes, length, expects


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: the process decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """No handlers."""
        yield


def http_server(face: HttpFace) -> HttpServer:
    """A server for sockets that its caller has bound: `await server.serve([socket])`."""
    config = uvicorn.Config(
        face,
        http=Http,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
    )
    return HttpServer(config)
