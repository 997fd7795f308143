"""Bodies of HTTP requests: what the headers say of one, and reading it within its limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from apparate_worker.errors import InvalidRequest, TooLarge
from apparate_worker.protocol.compression import coding_of, inflate

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class ClientGone(Exception):
    """The client went away before its request was whole."""


@dataclass(slots=True)
class Head:
    """What matters here of a request's headers."""

    json_bytes: int | None = None
    """Of the JSON before binary tensors, once inflated; None: all of the body."""
    length: int | None = None
    coding: bytes | None = None
    accepts: bytes = b""
    """Codings that the answer may have, as the client wrote them."""
    expects: bool = False
    """The client waits for `100 Continue` before it sends the body."""


def read_head(headers: list[tuple[bytes, bytes]]) -> Head:
    """The head of a request. Raises InvalidRequest."""
    head = Head()
    for name, value in headers:
        if name == b"inference-header-content-length":
            if not value.isdigit() or len(value) > 12:
                raise InvalidRequest(
                    f"Inference-Header-Content-Length is {value[:40].decode('latin-1')!r}, not a number"
                )
            head.json_bytes = int(value)
        elif name == b"content-length":
            head.length = int(value)  # the HTTP parser has refused anything else
        elif name == b"content-encoding":
            head.coding = coding_of(value)
        elif name == b"accept-encoding":
            head.accepts += b"," + value if head.accepts else value
        elif name == b"expect":
            head.expects = value.lower() == b"100-continue"
    return head


async def read_body(receive: Receive, head: Head, limit: int) -> bytes:
    """The whole body, inflated. Raises TooLarge as soon as it is known to be above `limit`, and ClientGone."""
    body = await _received(receive, head, limit)
    return body if head.coding is None else await inflate(body, head.coding, limit)


async def _received(receive: Receive, head: Head, limit: int) -> bytes:
    length = head.length
    if length is not None and length > limit:
        if not head.expects:  # a client that waits for `100 Continue` has not begun to send
            await drain(receive, length if length <= 2 * limit else 0)
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
            await drain(receive, limit)
            raise TooLarge(f"the body has more than {limit} bytes, the most allowed")
    return b"".join(parts)


async def drain(receive: Receive, most: int) -> None:
    """Read and forget up to `most` bytes, so that a client that is only a little too large hears the answer."""
    seen = 0
    while seen < most:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return
        seen += len(message.get("body", b""))
