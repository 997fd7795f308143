"""An S3 server for tests: buckets in memory, the few calls that a client needs, keys checked by name only."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class S3:
    """What it holds: `objects` by BUCKET/KEY, and which access key it lets in."""

    def __init__(self, access_key: str) -> None:
        self.objects: dict[str, bytes] = {}
        self.access_key = access_key
        self.order: list[str] = []
        self.removed: list[str] = []
        self.removable = True
        self.url = ""


@contextlib.contextmanager
def an_s3(access_key: str = "key") -> Iterator[S3]:
    """A server on loopback, gone when the block ends."""
    state = S3(access_key)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, body: bytes = b"", kind: str = "application/octet-stream") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 12:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _refused(self) -> bool:
            if f"Credential={state.access_key}/" in self.headers.get("Authorization", ""):
                return False
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", "application/xml")
            return True

        def do_PUT(self) -> None:
            if self._refused():
                return
            name = unquote(urlsplit(self.path).path.lstrip("/"))
            state.objects[name] = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.order.append(name)
            self._answer(200)

        def do_GET(self) -> None:
            if self._refused():
                return
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            name = unquote(parts.path.lstrip("/"))
            if "list-type" in query:
                self._list(name.strip("/"), query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
            elif name in state.objects:
                self._answer(200, state.objects[name])
            else:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>", "application/xml")

        do_HEAD = do_GET

        def do_DELETE(self) -> None:
            if self._refused():
                return
            if not state.removable:
                self._answer(403, b"<Error><Code>AccessDenied</Code></Error>", "application/xml")
                return
            name = unquote(urlsplit(self.path).path.lstrip("/"))
            state.objects.pop(name, None)
            state.removed.append(name)
            self._answer(204)

        def _list(self, bucket: str, prefix: str, delimiter: str) -> None:
            keys = sorted(name.partition("/")[2] for name in state.objects if name.startswith(f"{bucket}/{prefix}"))
            folders = set()
            if delimiter:
                folders = {
                    prefix + key[len(prefix) :].partition("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]
                }
                keys = [key for key in keys if "/" not in key[len(prefix) :]]
            rows = "".join(f"<Contents><Key>{escape(key)}</Key><Size>1</Size></Contents>" for key in keys)
            rows += "".join(
                f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)
            )
            text = f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            self._answer(200, text.encode(), "application/xml")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
