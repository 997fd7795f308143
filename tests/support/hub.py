"""A Hugging Face Hub for tests: repositories in memory, the few calls that a download needs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """What it holds: files by (kind, OWNER/NAME); those in `private` only for the token."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.token = "right"
        self.down = False
        self.url = ""


@contextlib.contextmanager
def a_hub() -> Iterator[Hub]:
    """A server on loopback, gone when the block ends."""
    state = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _lacks(self, what: str, status: int = 404) -> None:
            self._answer(status, b"{}", X_Error_Code=what)

        def do_GET(self) -> None:
            if state.down:
                self._answer(503)
                return
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            api = parts[0] == "api"
            kind = "dataset" if "datasets" in parts[:2] else "model"
            parts = [one for one in parts if one not in ("api", "models", "datasets")]
            repository, rest = "/".join(parts[:2]), parts[2:]
            files = state.files.get((kind, repository))
            allowed = repository not in state.private or self.headers.get("Authorization") == f"Bearer {state.token}"
            if files is None or not allowed:
                self._lacks("RepoNotFound", 401)
            elif len(rest) > 1 and rest[1] not in ("main", COMMIT):
                self._lacks("RevisionNotFound")
            elif api:
                self._listed(repository, rest[0] if rest else "", files)
            else:
                self._file("/".join(rest[2:]), files)

        do_HEAD = do_GET

        def _listed(self, repository: str, what: str, files: dict[str, bytes]) -> None:
            found: object = [{"type": "file", "path": n, "size": len(b), "oid": _etag(b)} for n, b in files.items()]
            if what != "tree":
                found = {"id": repository, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
            self._answer(200, json.dumps(found).encode(), Content_Type="application/json")

        def _file(self, name: str, files: dict[str, bytes]) -> None:
            if name not in files:
                self._lacks("EntryNotFound")
                return
            self._answer(200, files[name], ETag=f'"{_etag(files[name])}"', X_Repo_Commit=COMMIT)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _etag(body: bytes) -> str:
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()
