"""Who may ask: with a token set, everything but probes and metrics wants it."""

from __future__ import annotations

import base64
import binascii
import hmac

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked by the kubelet and by Prometheus, which have no token; they name models, and nothing that a request held."""
OWN_HEADER = "apparate-token"
"""Beside Authorization, which the API server keeps to itself when it passes a question on."""


class Entry:
    """ASGI middleware. The token comes as `Authorization: Bearer`, as the password of Basic, or in a header of ours."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode("ascii")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what may be asked; 401 else."""
        if scope["type"] == "http" and scope["path"] not in OPEN and not self._may(Headers(scope=scope)):
            told = {"detail": "this controller wants its token (EEM_CONTROLLER_API_TOKEN): none was given, or another"}
            refused = JSONResponse(told, 401, headers={"www-authenticate": 'Basic realm="apparate", charset="UTF-8"'})
            await refused(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _may(self, headers: Headers) -> bool:
        scheme, _, value = headers.get("authorization", "").partition(" ")
        given = value.strip().encode("latin-1")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                given = b""
        own = headers.get(OWN_HEADER, "").encode("latin-1")
        return hmac.compare_digest(given, self._token) or hmac.compare_digest(own, self._token)
