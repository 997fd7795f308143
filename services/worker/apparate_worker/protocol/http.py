"""The HTTP face: an ASGI application without framework, because every microsecond here is paid by every request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

import orjson
import uvicorn

from apparate.service.http import Http, HttpServer
from apparate.service.telemetry import Faults, get_logger
from apparate_worker.errors import NotReady, TooLarge, WorkerError
from apparate_worker.protocol.bodies import ClientGone, Receive, drain, read_body, read_head
from apparate_worker.protocol.compression import WORTH_BYTES, compressed
from apparate_worker.protocol.dataplane import Dataplane
from apparate_worker.protocol.models import Models
from apparate_worker.protocol.oip_json import check_change, parse, parse_raw, read_index, render
from apparate_worker.protocol.openapi import document
from apparate_worker.tracing import NOTHING, RequestTraces

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

JSON: tuple[bytes, bytes] = (b"content-type", b"application/json")
BINARY: tuple[bytes, bytes] = (b"content-type", b"application/octet-stream")
MODEL_PATH = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/ready|/infer|/stats)?")
INDEX_PATH, OPENAPI_PATH = "/v2/repository/index", "/openapi.json"
CHANGE_PATH = re.compile(r"/v2/repository/models/([^/]+)/(load|unload)")
FIXED_PATHS = ("/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/metrics", OPENAPI_PATH)
WATCH_AFTER_S = 0.05  # a shorter request is not worth a task that waits for its client to go away
KEEP_ALIVE_S = 75  # longer than the 60 s of common load balancers, so that it is they who close
log = get_logger(__name__)


class HttpFace:
    """Open Inference Protocol v2 over HTTP, /metrics and /openapi.json."""

    def __init__(
        self,
        models: Models,
        *,
        max_body_bytes: int,
        metrics: Callable[[str], tuple[bytes, str]],
        traces: RequestTraces | None = None,
    ) -> None:
        self._models, self._max_body_bytes, self._metrics = models, max_body_bytes, metrics
        self._faults, self._traces = Faults(log), traces
        self.draining = False
        """Whether answers ask clients to close their connections."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        try:
            if scope["method"] == "POST":
                await self._post(scope, receive, send)
            elif scope["method"] in ("GET", "HEAD"):  # the server leaves out the body of an answer to HEAD
                await self._get(scope, send)
            else:
                await self._reply(
                    send, 405, {"error": f"method {scope['method']} is not allowed"}, [(b"allow", b"GET, HEAD, POST")]
                )
        except ClientGone:
            return
        except WorkerError as error:
            await self._refuse(send, error)

    async def _get(self, scope: Scope, send: Send) -> None:
        path, models = scope["path"], self._models
        if path == "/v2/health/live":
            live = models.live()
            await self._reply(send, 200 if live else 503, {"live": live})
        elif path == "/v2/health/ready":
            ready = models.ready()
            await self._reply(send, 200 if ready else 503, {"ready": ready})
        elif path == "/metrics":
            accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
            page, content_type = self._metrics(accept)
            await self._send(send, 200, page, [(b"content-type", content_type.encode())])
        elif path == "/v2/models/stats":
            await self._reply(send, 200, {"model_stats": models.statistics()})
        elif path == OPENAPI_PATH:
            await self._reply(send, 200, document(models.planes))
        elif path.rstrip("/") == "/v2":
            await self._reply(send, 200, models.server_metadata())
        elif path == INDEX_PATH or CHANGE_PATH.fullmatch(path):
            await self._reply(send, 405, {"error": f"{path[:200]} takes POST"}, [(b"allow", b"POST")])
        else:
            await self._get_model(path, send)

    async def _get_model(self, path: str, send: Send) -> None:
        match = MODEL_PATH.fullmatch(path)
        if match is None:
            await self._reply(send, 404, {"error": f"there is nothing at {path[:200]}"})
            return
        name, version, action = match[1], match[2] or "", match[3]
        ready = self._models.model_ready(name, version)
        if action == "/infer":
            await self._reply(send, 405, {"error": "infer takes POST"}, [(b"allow", b"POST")])
        elif action == "/ready":
            await self._reply(send, 200 if ready else 503, {"name": name, "ready": ready})
        elif action == "/stats":
            await self._reply(send, 200, {"model_stats": self._models.statistics(name, version)})
        else:
            await self._reply(send, 200, self._model_metadata(self._models.find(name, version)))

    def _model_metadata(self, plane: Dataplane) -> dict[str, Any]:
        return {
            "name": plane.name,
            "versions": self._models.versions(plane.name),
            "platform": "pytorch",
            "inputs": [vars(one) for one in plane.model_inputs()],
            "outputs": [vars(one) for one in plane.model_outputs()],
        }

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        match = MODEL_PATH.fullmatch(path)
        if match is not None and match[3] == "/infer":
            await self._infer(match[1], match[2] or "", scope, receive, send)
        elif path == INDEX_PATH:
            body = await read_body(receive, read_head(scope["headers"]), self._max_body_bytes)
            listed = self._models.index(ready=read_index(body))
            await self._reply(send, 200, [vars(one) for one in listed])
        elif (change := CHANGE_PATH.fullmatch(path)) is not None:
            check_change(await read_body(receive, read_head(scope["headers"]), self._max_body_bytes))
            control = self._models.control
            await (control.load if change[2] == "load" else control.unload)(change[1])
            await self._reply(send, 200, {})
        else:
            await drain(receive, self._max_body_bytes)
            if match is not None or path in FIXED_PATHS:
                await self._reply(send, 405, {"error": f"{path[:200]} takes GET"}, [(b"allow", b"GET")])
            else:
                await self._reply(send, 404, {"error": f"there is nothing to POST to at {path[:200]}"})

    async def _infer(self, name: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
        span = None
        try:
            head = read_head(scope["headers"])
            body = await read_body(receive, head, self._max_body_bytes)
            plane = self._models.find(name, version)
            if head.json_bytes == 0:
                parsed = parse_raw(body, name, version, plane.inputs)
            else:
                parsed = parse(body, head.json_bytes, name, version)
            if self._traces is not None:
                span = parsed.request.trace = self._traces.begin("http", name, scope["headers"])
            answer = await self._watched(plane.infer(parsed.request), receive)
        except WorkerError as error:
            self._count(name, error.status, span)
            raise
        except ClientGone:
            self._count(name, 499, span)
            raise
        except asyncio.CancelledError:
            if not self.draining:
                raise
            gone = NotReady("the worker is stopping")  # and the client has not sent all of its request in time
            self._count(name, gone.status, span)
            raise gone from None
        except Exception as error:  # noqa: BLE001 - outermost: told with its traceback, and answered
            self._faults("request failed", error)
            self._count(name, 500, span)
            await self._reply(send, 500, {"error": "internal error"})
            return
        content, json_bytes = render(answer, parsed.binary)
        self._count(name, 200, span, answer.parameters)
        headers: Headers = [JSON]
        if json_bytes is not None:
            headers = [BINARY, (b"inference-header-content-length", b"%d" % json_bytes)]
        if head.accepts and len(content) >= WORTH_BYTES:
            content, coding = await compressed(content, head.accepts)
            if coding is not None:
                headers.append((b"content-encoding", coding))
        await self._send(send, 200, content, headers)

    def _count(self, name: str, status: int, span: Any = None, told: Mapping[str, Any] = NOTHING) -> None:
        self._models.count("http", name, status)
        if span is not None:
            RequestTraces.finish(span, status, told)

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
        proxy_headers=False,  # nobody reads the address of a client
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=5,
    )
    return HttpServer(config)
