"""Asking an ASGI application without a socket between."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

Headers = list[tuple[bytes, bytes]]


async def call(app: Any, method: str, url: str, headers: Headers, body: bytes) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of the answer."""
    asked, said = False, []

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            return {"type": "http.disconnect"}
        asked = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    split = urlsplit(url)
    scope = {
        "type": "http",
        "method": method,
        "path": unquote(split.path),
        "raw_path": split.path.encode(),
        "query_string": split.query.encode(),
        "headers": [(name.lower(), value) for name, value in headers],
    }
    await app(scope, receive, send)
    start, *parts = said
    told = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return start["status"], told, b"".join(one.get("body", b"") for one in parts)
