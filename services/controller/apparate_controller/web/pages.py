"""Serves the page and the viewer of the HTTP API, and keeps what they may load to themselves."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from starlette.datastructures import MutableHeaders
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # a file that did not change is answered 304
}
VIEWER_HEADERS = {  # the viewer's icons are in its style sheet
    **HEADERS,
    "content-security-policy": POLICY.replace("img-src 'self'", "img-src 'self' data:"),
}


def add_page(app: FastAPI) -> None:
    """Put the page at / and its files below /web; the viewer of the HTTP API, Swagger UI, at /docs."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        """The page."""
        return FileResponse(STATIC / "index.html", media_type="text/html", headers=HEADERS)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        """The viewer of the HTTP API."""
        return FileResponse(STATIC / "docs.html", media_type="text/html", headers=VIEWER_HEADERS)

    viewer = Path(str(files("fastapi_offline") / "static"))  # FastAPI's own page has the browser fetch it from a server
    app.mount("/web/viewer", _Guarded(StaticFiles(directory=viewer)), name="viewer")
    app.mount("/web", _Guarded(StaticFiles(directory=STATIC)), name="web")


class _Guarded:
    """The same headers on every file."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._inner(scope, receive, sent)
